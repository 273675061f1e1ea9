//! Fake engine processes under fake keepers. They do what real ones were seen to do: mumble, ask, lie about their
//! session, say the end twice, die without a word, ignore orders. What a keeper holds outlives the daemon.

use std::collections::{BTreeMap, BTreeSet};

use abide_domain::{
    approval::ApprovalVerdict,
    effect::{EffectNumber, LaunchSession},
    engine::{EngineSessionHandle, HandleType, ProfileKind},
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    id::{RunId, TurnId},
    interaction::{DecisionPolicy, GatePurpose, InteractionKind, InteractionOption, Question},
    process::{Attempt, ExitStatus, ProcessBinding},
};

use abide_testkit::dice::Dice;

/// All processes that were ever started, and what they did.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    pub(crate) keepers: BTreeMap<(RunId, Attempt), Keeper>,
    /// How often each turn's prompt reached an engine.
    pub(crate) executed: BTreeMap<TurnId, Executed>,
    /// How often each steered message did.
    pub(crate) steered: BTreeMap<String, u32>,
    next_session: u32,
}

/// What an engine was told in a turn.
#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) run: RunId,
    pub(crate) prompt: String,
    pub(crate) times: u32,
}

/// A fake keeper: one process and everything that it said.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) process: ProcessBinding,
    pub(crate) fate: Fate,
    /// Everything that the process said, in order, and in which turn. Survives the daemon and the process.
    pub(crate) spool: Vec<(TurnId, Said)>,
    turn: TurnId,
    /// Orders that were already carried out on this process.
    pub(crate) done: BTreeSet<EffectNumber>,
    /// Answers by gate; hearing the same one again is no second answer.
    pub(crate) answers: BTreeMap<String, BTreeSet<(String, bool)>>,
    pub(crate) kind: ProfileKind,
    /// The session that the process really works in.
    pub(crate) session: String,
    script: Vec<Line>,
    obeys: bool,
}

/// An order to start a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order<'a> {
    pub(crate) run: RunId,
    pub(crate) attempt: Attempt,
    pub(crate) turn: TurnId,
    pub(crate) session: &'a LaunchSession,
    pub(crate) prompt: &'a str,
}

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Alive,
    Exited(i32),
    /// Gone with the machine; nobody saw how.
    Vanished,
}

/// Something that an engine said.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Session(String),
    Progress,
    Gate { gate: String, purpose: GatePurpose, question: Question },
    Withdrawn { gate: String },
    End(TurnOutcome),
}

/// What a process will do next.
#[derive(Clone, Debug)]
enum Line {
    Say(Said),
    AwaitAnswer(String),
    Exit(i32),
    Hang,
}

impl Engines {
    /// Starts a process for a turn, unless this attempt was started before.
    pub(crate) fn launch(&mut self, order: &Order<'_>, plan: &Plan, dice: &mut Dice) -> &Keeper {
        let Order { run, attempt, turn, session, prompt } = *order;
        if !self.keepers.contains_key(&(run, attempt)) {
            self.execute(run, turn, prompt);
            self.next_session += 1;
            let new = format!("session-{}", self.next_session);
            let real = match session {
                LaunchSession::New => new,
                LaunchSession::Named(handle) => handle.handle_value.clone(),
                // Several programs quietly start a new session instead.
                LaunchSession::Resumed(_) if dice.chance(plan.lies) => new,
                LaunchSession::Resumed(handle) => handle.handle_value.clone(),
            };
            let mut script = vec![];
            if !dice.chance(plan.mutes) {
                script.push(Line::Say(Said::Session(real.clone())));
            }
            script.extend(turn_script(turn, plan, dice));
            let pid = 1000 + self.keepers.len() as u32;
            let process = ProcessBinding {
                keeper: format!("{run}/{}", attempt.0),
                pid,
                start_time: 1,
                boot_id: "boot".into(),
            };
            let keeper = Keeper {
                process,
                fate: Fate::Alive,
                spool: vec![],
                turn,
                done: BTreeSet::new(),
                answers: BTreeMap::new(),
                kind: plan.kind,
                session: real,
                script,
                obeys: !dice.chance(plan.disobeys),
            };
            self.keepers.insert((run, attempt), keeper);
        }
        &self.keepers[&(run, attempt)]
    }

    /// Gives a living process the prompt of its next turn, once.
    pub(crate) fn say(
        &mut self,
        at: (RunId, Attempt),
        order: EffectNumber,
        turn: TurnId,
        prompt: &str,
        plan: &Plan,
        dice: &mut Dice,
    ) {
        let Some(keeper) = self.keepers.get_mut(&at) else { return };
        if keeper.fate != Fate::Alive || !keeper.done.insert(order) {
            return;
        }
        keeper.turn = turn;
        keeper.script = turn_script(turn, plan, dice);
        self.execute(at.0, turn, prompt);
    }

    pub(crate) fn answer(
        &mut self,
        at: (RunId, Attempt),
        order: EffectNumber,
        gate: &str,
        answer: (&str, Option<ApprovalVerdict>),
    ) {
        let Some(keeper) = self.keepers.get_mut(&at) else { return };
        if keeper.fate != Fate::Alive || !keeper.done.insert(order) {
            return;
        }
        let (text, verdict) = answer;
        let answers = keeper.answers.entry(gate.to_owned()).or_default();
        answers.insert((text.to_owned(), verdict == Some(ApprovalVerdict::Approved)));
    }

    /// Puts a message into the running turn, once. A process whose turn is over cannot take it.
    pub(crate) fn steer(&mut self, at: (RunId, Attempt), order: EffectNumber, message: &str) -> bool {
        let Some(keeper) = self.keepers.get_mut(&at) else { return false };
        if keeper.done.contains(&order) {
            return true;
        }
        if keeper.fate != Fate::Alive || keeper.script.is_empty() {
            return false;
        }
        keeper.done.insert(order);
        *self.steered.entry(message.to_owned()).or_default() += 1;
        true
    }

    pub(crate) fn interrupt(&mut self, at: (RunId, Attempt), order: EffectNumber, dice: &mut Dice) {
        let Some(keeper) = self.keepers.get_mut(&at) else { return };
        if keeper.fate == Fate::Alive && keeper.done.insert(order) && keeper.obeys {
            let obedient = vec![Line::Say(Said::End(TurnOutcome::Interrupted))];
            keeper.script = if dice.chance(70) { obedient } else { vec![Line::Exit(130)] };
        }
    }

    pub(crate) fn terminate(&mut self, at: (RunId, Attempt)) {
        if let Some(keeper) = self.keepers.get_mut(&at).filter(|keeper| keeper.fate == Fate::Alive) {
            keeper.fate = Fate::Exited(137);
        }
    }

    /// The machine goes down: every process is gone and nobody saw how. What was said is on disk.
    pub(crate) fn reboot(&mut self) {
        for keeper in self.keepers.values_mut().filter(|keeper| keeper.fate == Fate::Alive) {
            keeper.fate = Fate::Vanished;
        }
    }

    /// Every process that is alive.
    pub(crate) fn alive(&self) -> impl Iterator<Item = (RunId, Attempt)> {
        self.keepers.iter().filter(|(_, keeper)| keeper.fate == Fate::Alive).map(|(at, _)| *at)
    }

    fn execute(&mut self, run: RunId, turn: TurnId, prompt: &str) {
        let executed = self.executed.entry(turn);
        executed.or_insert_with(|| Executed { run, prompt: prompt.to_owned(), times: 0 }).times += 1;
    }
}

impl Keeper {
    /// Lets the process go on by one line of its script, and says what it did.
    pub(crate) fn live_on(&mut self) -> Option<String> {
        if self.fate != Fate::Alive {
            return None;
        }
        if let Some(Line::AwaitAnswer(gate)) = self.script.first() {
            if !self.answers.contains_key(gate) {
                return None;
            }
            self.script.remove(0);
        }
        if self.script.is_empty() {
            // Between turns a sticky process waits; another one has nothing left to do.
            if self.kind == ProfileKind::StickyProcess {
                return None;
            }
            self.fate = Fate::Exited(0);
            return Some("exits".into());
        }
        match self.script.remove(0) {
            Line::Say(said) => {
                let told = said.told();
                self.spool.push((self.turn, said));
                Some(told)
            }
            Line::Exit(code) => {
                self.fate = Fate::Exited(code);
                Some(format!("dies with code {code}"))
            }
            Line::Hang => {
                self.script.insert(0, Line::Hang);
                None
            }
            Line::AwaitAnswer(gate) => {
                self.script.insert(0, Line::AwaitAnswer(gate));
                None
            }
        }
    }

    /// After a reconnect, an engine says again what it still waits for.
    pub(crate) fn repeat_open_gate(&mut self) {
        let Some(Line::AwaitAnswer(open)) = self.script.first() else { return };
        if self.answers.contains_key(open) {
            return;
        }
        let asks = |said: &Said| matches!(said, Said::Gate { gate, .. } if gate == open);
        if let Some(again) = self.spool.iter().rev().find(|(_, said)| asks(said)).cloned() {
            self.spool.push(again);
        }
    }

    /// A process that would sit there for ever is put out of its misery, so that the world can come to rest.
    pub(crate) fn unhang(&mut self) {
        if matches!(self.script.first(), Some(Line::Hang | Line::AwaitAnswer(_))) {
            self.script = vec![Line::Exit(1)];
        }
    }

    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        match self.fate {
            Fate::Alive => None,
            Fate::Exited(code) => Some(ExitStatus::Code(code)),
            Fate::Vanished => Some(ExitStatus::Unseen),
        }
    }
}

impl Said {
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Session(session) => format!("names its session {session}"),
            Self::Progress => "gets on".into(),
            Self::Gate { gate, purpose, .. } => format!("asks inside its turn ({gate}, {purpose:?})"),
            Self::Withdrawn { gate } => format!("takes {gate} back"),
            Self::End(TurnOutcome::Completed { text }) => format!("ends its turn: {text:?}"),
            Self::End(TurnOutcome::Asked { .. }) => "ends its turn with a question".into(),
            Self::End(TurnOutcome::Failed { failure }) => format!("fails: {}", failure.message),
            Self::End(TurnOutcome::Interrupted) => "stops as told".into(),
        }
    }
}

/// How the engine of a run behaves, in percent.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: ProfileKind,
    pub(crate) steers: bool,
    pub(crate) reads_back: bool,
    pub(crate) names_ours: bool,
    pub(crate) lies: u64,
    pub(crate) mutes: u64,
    pub(crate) asks: u64,
    pub(crate) gates: u64,
    pub(crate) fails: u64,
    pub(crate) disobeys: u64,
    /// How often its program cannot be started.
    pub(crate) refuses: u64,
}

impl Plan {
    pub(crate) fn random(dice: &mut Dice) -> Self {
        Self {
            kind: dice.pick(&[ProfileKind::Resumable, ProfileKind::Resumable, ProfileKind::StickyProcess]),
            steers: dice.chance(40),
            reads_back: dice.chance(40),
            names_ours: dice.chance(30),
            lies: dice.pick(&[0, 0, 15]),
            mutes: dice.pick(&[0, 0, 20]),
            asks: dice.pick(&[20, 60]),
            gates: dice.pick(&[0, 40]),
            fails: dice.pick(&[0, 15]),
            disobeys: dice.pick(&[0, 50]),
            refuses: dice.pick(&[8, 8, 8, 80]),
        }
    }

    /// The same engine on a good day, when the world is brought to rest.
    pub(crate) fn behave(&mut self) {
        (self.lies, self.mutes, self.asks, self.gates, self.fails) = (0, 0, 0, 0, 0);
    }
}

/// The text with which a turn completes; it names its turn, so that an answer shown for another one is noticed.
pub(crate) fn answer_of(turn: TurnId) -> String {
    format!("answer of {turn}")
}

fn turn_script(turn: TurnId, plan: &Plan, dice: &mut Dice) -> Vec<Line> {
    let mut script = vec![];
    for _ in 0..dice.below(3) {
        script.push(Line::Say(Said::Progress));
    }
    let mut number = 0;
    while dice.chance(plan.gates) && number < 3 {
        number += 1;
        let gate = format!("{turn}/gate-{number}");
        let purpose = dice.pick(&[GatePurpose::Approval, GatePurpose::Input]);
        let question = question(dice);
        script.push(Line::Say(Said::Gate { gate: gate.clone(), purpose, question }));
        match dice.below(4) {
            0 => script.push(Line::Say(Said::Withdrawn { gate })),
            // Asked for in parallel with the next one.
            1 => {}
            _ => script.push(Line::AwaitAnswer(gate)),
        }
    }
    if dice.chance(plan.fails) {
        script.push(match dice.below(3) {
            0 => Line::Exit(dice.pick(&[0, 1])),
            1 => Line::Hang,
            _ => Line::Say(Said::End(TurnOutcome::Failed {
                failure: RunFailure::new(FailureCode::EngineFailed, "the model said no"),
            })),
        });
        return script;
    }
    let end = if dice.chance(plan.asks) {
        TurnOutcome::Asked { text: answer_of(turn), question: question(dice) }
    } else {
        TurnOutcome::Completed { text: answer_of(turn) }
    };
    script.push(Line::Say(Said::End(end.clone())));
    if dice.chance(10) {
        script.push(Line::Say(Said::End(end)));
    }
    script
}

fn question(dice: &mut Dice) -> Question {
    let options = if dice.chance(50) {
        vec![
            InteractionOption { label: "yes".into(), safe: false },
            InteractionOption { label: "leave it".into(), safe: true },
        ]
    } else {
        vec![]
    };
    Question {
        kind: dice.pick(&[
            InteractionKind::ChooseOne,
            InteractionKind::Confirm,
            InteractionKind::OpenText,
            InteractionKind::RiskAck,
        ]),
        prompt: "what now?".into(),
        options,
        ui_hints: None,
        default_decision_policy: dice.pick(&[
            DecisionPolicy::EngineJudgement,
            DecisionPolicy::EngineJudgement,
            DecisionPolicy::SafeDefault,
            DecisionPolicy::Abort,
        ]),
        context: None,
        hidden: None,
    }
}

/// The handle of a session name.
pub(crate) fn handle(session: &str) -> EngineSessionHandle {
    EngineSessionHandle {
        engine: "fake".into(),
        handle_type: HandleType::SessionId,
        handle_value: session.to_owned(),
        created_at_turn: 1,
    }
}
