//! Fake engine processes under fake keepers. They reproduce observed behaviour: they print progress, ask, report a
//! wrong session, report the end twice, exit without a result, and ignore signals. The state of a keeper survives the
//! daemon.

use std::collections::{BTreeMap, BTreeSet};

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineSessionHandle, HandleType, ProfileKind},
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    id::{RunId, TurnId},
    interaction::{DecisionPolicy, GatePurpose, InteractionKind, InteractionOption, Question},
    process::{Attempt, ExitStatus, ProcessBinding},
};

use abide_testkit::seeded_rng::SeededRng;
use serde::{Deserialize, Serialize};

use crate::{
    adapter::{SimInputLine, SimOutputLine},
    processes::SimProcessKey,
};

/// All processes that were ever started, and their actions.
#[derive(Debug, Default)]
pub(crate) struct SimEngines {
    pub(crate) keepers: BTreeMap<SimProcessKey, SimKeeper>,
    /// The behaviour of each engine, by name.
    pub(crate) plans: BTreeMap<String, EnginePlan>,
    /// Actions that were not committed before.
    pub(crate) uncommitted: Vec<String>,
    /// How often the prompt of each turn reached an engine.
    pub(crate) executed: BTreeMap<TurnId, ExecutedTurn>,
    /// For each steered message, the turns that received it.
    pub(crate) steered: BTreeMap<String, Vec<TurnId>>,
    next_session: u32,
    next_progress: u32,
}

/// The prompt of a turn and its number of executions.
#[derive(Debug)]
pub(crate) struct ExecutedTurn {
    pub(crate) run: RunId,
    pub(crate) prompt: String,
    pub(crate) times: u32,
}

/// A fake keeper: one process and its output.
#[derive(Clone, Debug)]
pub(crate) struct SimKeeper {
    pub(crate) process: ProcessBinding,
    pub(crate) fate: ProcessFate,
    /// All output of the process. Survives the daemon and the process.
    pub(crate) spool: Vec<u8>,
    turn: TurnId,
    /// The number of the turn within the process.
    turn_number: u32,
    /// The keys of the input that was written.
    pub(crate) keys: BTreeSet<u64>,
    pub(crate) checkpoint: Option<Vec<u8>>,
    /// Whether the keeper does not answer.
    pub(crate) is_silent: bool,
    /// Whether the connection of the reader is broken.
    pub(crate) is_severed: bool,
    /// Whether its records were removed.
    pub(crate) is_removed: bool,
    pub(crate) is_input_closed: bool,
    /// Answers by gate. A repetition of the same one does not count: an engine may repeat its request.
    pub(crate) answers: BTreeMap<String, BTreeSet<(String, bool)>>,
    pub(crate) kind: ProfileKind,
    plan: EnginePlan,
    /// The actual session of the process.
    pub(crate) session: String,
    script: Vec<ScriptStep>,
    obeys: bool,
}

/// The parameters of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimLaunch<'a> {
    pub(crate) at: SimProcessKey,
    pub(crate) turn: TurnId,
    pub(crate) session: &'a LaunchSession,
    pub(crate) prompt: &'a str,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessFate {
    Alive,
    Exited(i32),
    /// Lost in a reboot, without an exit status.
    Vanished,
}

/// A fact that an engine reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum SimFact {
    Session(String),
    /// The text is unique.
    Progress(String),
    Gate {
        gate: String,
        purpose: GatePurpose,
        question: Question,
    },
    Withdrawn {
        gate: String,
    },
    End(TurnOutcome),
}

/// The next action of a process.
#[derive(Clone, Debug)]
enum ScriptStep {
    Say(SimFact),
    AwaitAnswer(String),
    Exit(i32),
    Hang,
}

impl SimEngines {
    /// Starts a process for a turn.
    pub(crate) fn launch(
        &mut self,
        order: &SimLaunch<'_>,
        plan: &EnginePlan,
        dice: &mut SeededRng,
    ) -> &SimKeeper {
        let SimLaunch { at: (run, attempt), turn, session, prompt } = *order;
        {
            self.execute(run, turn, prompt);
            self.next_session += 1;
            let new = format!("session-{}", self.next_session);
            let real = match session {
                LaunchSession::New => new,
                LaunchSession::Named(handle) => handle.handle_value.clone(),
                // Several real programs silently start a new session instead.
                LaunchSession::Resumed(_) if dice.chance(plan.lies) => new,
                LaunchSession::Resumed(handle) => handle.handle_value.clone(),
            };
            let mut script = vec![];
            if !dice.chance(plan.mutes) {
                script.push(ScriptStep::Say(SimFact::Session(real.clone())));
            }
            script.extend(turn_script(turn, plan, dice, &mut self.next_progress));
            let pid = 1000 + self.keepers.len() as u32;
            let process = ProcessBinding {
                keeper: format!("{run}/{}", attempt.0),
                pid,
                start_time: 1,
                boot_id: "boot".into(),
            };
            let keeper = SimKeeper {
                process,
                fate: ProcessFate::Alive,
                spool: vec![],
                turn,
                turn_number: 1,
                keys: BTreeSet::new(),
                checkpoint: None,
                is_silent: false,
                is_severed: false,
                is_removed: false,
                is_input_closed: false,
                answers: BTreeMap::new(),
                kind: plan.kind,
                plan: plan.clone(),
                session: real,
                script,
                obeys: !dice.chance(plan.disobeys),
            };
            self.keepers.insert((run, attempt), keeper);
        }
        &self.keepers[&(run, attempt)]
    }

    /// Handles input of a living process. `turn` is the turn of a prompt.
    pub(crate) fn input(
        &mut self,
        at: SimProcessKey,
        line: SimInputLine,
        turn: Option<TurnId>,
        dice: &mut SeededRng,
    ) {
        let Some(keeper) = self.keepers.get_mut(&at) else { return };
        match line {
            SimInputLine::Prompt(prompt) => {
                let Some(turn) = turn else { return };
                keeper.turn = turn;
                keeper.turn_number += 1;
                keeper.script = turn_script(turn, &keeper.plan, dice, &mut self.next_progress);
                self.execute(at.0, turn, &prompt);
            }
            SimInputLine::Answer { gate, text, is_approved } => {
                keeper.answers.entry(gate).or_default().insert((text, is_approved));
            }
            // A process whose turn has ended takes it for the next turn; the interpreter prevents most of that.
            SimInputLine::Steer(message) => self.steered.entry(message).or_default().push(keeper.turn),
            SimInputLine::Interrupt if keeper.obeys => {
                let obedient = vec![ScriptStep::Say(SimFact::End(TurnOutcome::Interrupted))];
                keeper.script = if dice.chance(70) { obedient } else { vec![ScriptStep::Exit(130)] };
            }
            SimInputLine::Interrupt => {}
        }
    }

    /// Simulates a reboot: every process is lost without an exit status. The spools remain on disk.
    pub(crate) fn reboot(&mut self) {
        for keeper in self.keepers.values_mut().filter(|keeper| keeper.fate == ProcessFate::Alive) {
            keeper.fate = ProcessFate::Vanished;
        }
    }

    /// Starts a process of a run that the store does not know, as after the store was restored from an older copy.
    pub(crate) fn start_stray(&mut self, run: RunId) {
        let Some(alive) = self.alive().next() else { return };
        let mut stray = self.keepers[&alive].clone();
        // It waits for input that never comes, so only the daemon ends it.
        (stray.script, stray.kind, stray.is_input_closed) = (vec![], ProfileKind::StickyProcess, false);
        (stray.answers, stray.is_silent) = (BTreeMap::new(), false);
        self.keepers.insert((run, Attempt(1)), stray);
    }

    /// All living processes.
    pub(crate) fn alive(&self) -> impl Iterator<Item = (RunId, Attempt)> {
        self.keepers.iter().filter(|(_, keeper)| keeper.fate == ProcessFate::Alive).map(|(at, _)| *at)
    }

    fn execute(&mut self, run: RunId, turn: TurnId, prompt: &str) {
        let executed = self.executed.entry(turn);
        executed.or_insert_with(|| ExecutedTurn { run, prompt: prompt.to_owned(), times: 0 }).times += 1;
    }
}

impl SimKeeper {
    /// Executes one step of the process's script, and returns a description.
    pub(crate) fn live_on(&mut self) -> Option<String> {
        if self.fate != ProcessFate::Alive {
            return None;
        }
        if let Some(ScriptStep::AwaitAnswer(gate)) = self.script.first() {
            if !self.answers.contains_key(gate) {
                return None;
            }
            self.script.remove(0);
        }
        if self.script.is_empty() {
            // Between turns a sticky process waits; any other exits.
            if self.kind == ProfileKind::StickyProcess && !self.is_input_closed {
                return None;
            }
            self.fate = ProcessFate::Exited(0);
            return Some("exits".into());
        }
        match self.script.remove(0) {
            ScriptStep::Say(said) => {
                let told = said.told();
                self.say(said);
                Some(told)
            }
            ScriptStep::Exit(code) => {
                self.fate = ProcessFate::Exited(code);
                Some(format!("dies with code {code}"))
            }
            ScriptStep::Hang => {
                self.script.insert(0, ScriptStep::Hang);
                None
            }
            ScriptStep::AwaitAnswer(gate) => {
                self.script.insert(0, ScriptStep::AwaitAnswer(gate));
                None
            }
        }
    }

    fn say(&mut self, fact: SimFact) {
        let line = SimOutputLine { turn: self.turn_number, fact };
        self.spool.extend(serde_json::to_vec(&line).expect("it can be written as JSON"));
        self.spool.push(b'\n');
    }

    /// After a reconnect, an engine repeats its open gate.
    pub(crate) fn repeat_open_gate(&mut self) {
        let Some(ScriptStep::AwaitAnswer(open)) = self.script.first().cloned() else { return };
        if self.fate != ProcessFate::Alive || self.answers.contains_key(&open) {
            return;
        }
        let mut lines =
            self.spool.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        let asks = |line: &SimOutputLine| matches!(&line.fact, SimFact::Gate { gate, .. } if *gate == open);
        if let Some(again) = lines.rfind(asks) {
            self.say(again.fact);
        }
    }

    /// Ends a process that would hang, so that the world can become quiescent.
    pub(crate) fn unhang(&mut self) {
        if matches!(self.script.first(), Some(ScriptStep::Hang | ScriptStep::AwaitAnswer(_))) {
            self.script = vec![ScriptStep::Exit(1)];
        }
    }

    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        match self.fate {
            ProcessFate::Alive => None,
            ProcessFate::Exited(code) => Some(ExitStatus::Code(code)),
            ProcessFate::Vanished => Some(ExitStatus::Unknown),
        }
    }
}

impl SimFact {
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Session(session) => format!("names its session {session}"),
            Self::Progress(text) => format!("gets on: {text}"),
            Self::Gate { gate, purpose, .. } => format!("asks inside its turn ({gate}, {purpose:?})"),
            Self::Withdrawn { gate } => format!("takes {gate} back"),
            Self::End(TurnOutcome::Completed { text }) => format!("ends its turn: {text:?}"),
            Self::End(TurnOutcome::Asked { .. }) => "ends its turn with a question".into(),
            Self::End(TurnOutcome::Failed { failure }) => format!("fails: {}", failure.message),
            Self::End(TurnOutcome::Interrupted) => "stops as told".into(),
        }
    }
}

/// The behaviour of a run's engine, in percent.
#[derive(Clone, Debug)]
pub(crate) struct EnginePlan {
    pub(crate) kind: ProfileKind,
    pub(crate) steers: bool,
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

impl EnginePlan {
    pub(crate) fn random(dice: &mut SeededRng) -> Self {
        Self {
            kind: dice.choose_nonempty(&[
                ProfileKind::Resumable,
                ProfileKind::Resumable,
                ProfileKind::StickyProcess,
            ]),
            steers: dice.chance(40),
            names_ours: dice.chance(30),
            lies: dice.choose_nonempty(&[0, 0, 15]),
            mutes: dice.choose_nonempty(&[0, 0, 20]),
            asks: dice.choose_nonempty(&[20, 60]),
            gates: dice.choose_nonempty(&[0, 40]),
            fails: dice.choose_nonempty(&[0, 15]),
            disobeys: dice.choose_nonempty(&[0, 50]),
            refuses: dice.choose_nonempty(&[8, 8, 8, 80]),
        }
    }

    /// Makes the engine reliable, for the end of the history.
    pub(crate) fn behave(&mut self) {
        (self.lies, self.mutes, self.asks, self.gates, self.fails, self.refuses) = (0, 0, 0, 0, 0, 0);
    }
}

/// The text of a completed turn. It contains the turn id, so that a delivery for another turn is detected.
pub(crate) fn answer_of(turn: TurnId) -> String {
    format!("answer of {turn}")
}

fn turn_script(
    turn: TurnId,
    plan: &EnginePlan,
    dice: &mut SeededRng,
    next_progress: &mut u32,
) -> Vec<ScriptStep> {
    let mut script = vec![];
    for _ in 0..dice.below(4) {
        *next_progress += 1;
        script.push(ScriptStep::Say(SimFact::Progress(format!("step {next_progress}"))));
    }
    let mut number = 0;
    while dice.chance(plan.gates) && number < 3 {
        number += 1;
        let gate = format!("{turn}/gate-{number}");
        let purpose = dice.choose_nonempty(&[GatePurpose::Approval, GatePurpose::Input]);
        let question = question(dice);
        script.push(ScriptStep::Say(SimFact::Gate { gate: gate.clone(), purpose, question }));
        match dice.below(4) {
            0 => script.push(ScriptStep::Say(SimFact::Withdrawn { gate })),
            // Asked in parallel with the next one.
            1 => {}
            _ => script.push(ScriptStep::AwaitAnswer(gate)),
        }
    }
    if dice.chance(plan.fails) {
        script.push(match dice.below(3) {
            0 => ScriptStep::Exit(dice.choose_nonempty(&[0, 1])),
            1 => ScriptStep::Hang,
            _ => ScriptStep::Say(SimFact::End(TurnOutcome::Failed {
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
    script.push(ScriptStep::Say(SimFact::End(end.clone())));
    if dice.chance(10) {
        script.push(ScriptStep::Say(SimFact::End(end)));
    }
    script
}

fn question(dice: &mut SeededRng) -> Question {
    let options = if dice.chance(50) {
        vec![
            InteractionOption { label: "yes".into(), safe: false },
            InteractionOption { label: "leave it".into(), safe: true },
        ]
    } else {
        vec![]
    };
    Question {
        kind: dice.choose_nonempty(&[
            InteractionKind::ChooseOne,
            InteractionKind::Confirm,
            InteractionKind::OpenText,
            InteractionKind::RiskAck,
        ]),
        prompt: "what now?".into(),
        options,
        ui_hints: None,
        default_decision_policy: dice.choose_nonempty(&[
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
pub(crate) fn handle(engine: &str, session: &str) -> EngineSessionHandle {
    EngineSessionHandle {
        engine: engine.to_owned(),
        handle_type: HandleType::SessionId,
        handle_value: session.to_owned(),
        created_at_turn: 1,
    }
}
