//! How an actor is started and what its lines mean.

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineResumeCapability, EngineSessionHandle, HandleType, ProbeMethod},
    event::TurnOutcome,
    failure::{FailureCode, RunFailure},
    interaction::{DecisionPolicy, InteractionKind, Question},
    process::OutputPosition,
};
use abide_ports::engine::{
    Abilities, Ability, Answer, Check, Departure, Engine, Health, IncompatibleCheckpoint, Installation,
    Interpreter, Launch, Leave, Observed, Order, ReaderCheckpoint, Said, Signal, Status, Stdin, Stop,
    Unsupported, What,
};

/// The engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Actor;

impl Engine for Actor {
    fn name(&self) -> &str {
        "actor"
    }

    fn abilities(&self) -> Abilities {
        Abilities::of(&[Ability::Resume, Ability::Progress])
    }

    fn installation(&self) -> Installation {
        Installation::named("actor")
    }

    fn checks(&self, installation: &Installation) -> Vec<Check> {
        let command = installation.command.iter().cloned();
        vec![Check::command(command.chain([super::processes::CHECK.to_owned()]))]
    }

    fn judge(&self, observed: &[Observed]) -> Health {
        let version = observed.first().and_then(Observed::version);
        let missing = || RunFailure::new(FailureCode::EngineNotFound, "no actor has come");
        let trouble = if version.is_some() { None } else { Some(missing()) };
        let detail = "a new actor knows the play".to_owned();
        let resume = EngineResumeCapability { supported: true, probe_method: ProbeMethod::Command, detail };
        Health { version, trouble, resume, abilities: self.abilities() }
    }

    fn name_session(&self, _: &str) -> Option<EngineSessionHandle> {
        None
    }

    fn launch(&self, order: &Order<'_>) -> Result<Launch, Unsupported> {
        let session = match order.session {
            LaunchSession::New => String::new(),
            LaunchSession::Named(handle) | LaunchSession::Resumed(handle) => handle.handle_value.clone(),
        };
        let mut argv = order.installation.command.clone();
        argv.extend([session, order.prompt.to_owned()]);
        Ok(Launch {
            argv,
            env: vec![],
            without_env: vec![],
            appended_env: vec![],
            files: vec![],
            stdin: Stdin::Open(vec![]),
            not_before: None,
            outliving: None,
        })
    }

    fn interpreter(&self, _: &Order<'_>) -> Box<dyn Interpreter> {
        Box::new(Prompter::default())
    }

    fn skills_folder(&self) -> &str {
        ".actor/skills"
    }
}

/// The version of an actor's checkpoints.
const VERSION: &str = "actor/1";

/// Understands actors.
#[derive(Debug, Default)]
struct Prompter {
    unfinished: Vec<u8>,
    heard: u64,
    ended: bool,
    over: bool,
}

impl Prompter {
    fn what(&mut self, line: &str) -> What {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = rest.to_owned();
        match word {
            "session" => What::Session { handle_type: HandleType::SessionId, value: text },
            "progress" => What::Progress(text),
            "write" => What::Write(format!("{rest}\n").into_bytes()),
            "ask" => {
                let question = Question {
                    kind: InteractionKind::OpenText,
                    prompt: text,
                    options: vec![],
                    ui_hints: None,
                    default_decision_policy: DecisionPolicy::EngineJudgement,
                    context: None,
                    hidden: None,
                };
                self.ends(TurnOutcome::Asked { text: String::new(), question })
            }
            "break" => panic!("an actor broke its interpreter, as the test wants"),
            "done" => self.ends(TurnOutcome::Completed { text }),
            _ => What::Unknown(line.to_owned()),
        }
    }

    fn ends(&mut self, ending: TurnOutcome) -> What {
        self.ended = true;
        What::Ended { turn: 1, ending }
    }
}

impl Interpreter for Prompter {
    fn feed(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.unfinished.extend_from_slice(bytes);
        let mut said = Vec::new();
        while let Some(end) = self.unfinished.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unfinished.drain(..=end).collect();
            self.heard += line.len() as u64;
            let what = self.what(String::from_utf8_lossy(&line).trim_end());
            said.push(Said { at: Said::position(self.heard, 0), what });
        }
        said
    }

    fn end(&mut self, departure: &Departure<'_>) -> Vec<Said> {
        self.over = true;
        if self.ended {
            return vec![];
        }
        let message = format!("the actor left the stage: {:?}", departure.exit);
        let what =
            self.ends(TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, message) });
        vec![Said { at: OutputPosition(u64::MAX), what }]
    }

    fn status(&self) -> Status {
        match (self.over, self.ended) {
            (true, _) => Status::Over,
            (false, true) => Status::BetweenTurns,
            (false, false) => Status::Working,
        }
    }

    fn say(&mut self, _: &str) -> Result<Vec<u8>, Unsupported> {
        Err(Unsupported::Lacks { ability: Ability::Hold })
    }

    fn answer(&mut self, _: &Answer<'_>) -> Result<Vec<u8>, Unsupported> {
        Err(Unsupported::Lacks { ability: Ability::Gates })
    }

    fn steer(&mut self, _: &str) -> Result<Vec<u8>, Unsupported> {
        Err(Unsupported::Lacks { ability: Ability::Steer })
    }

    fn interrupt(&mut self) -> Stop {
        Stop::Signal(Signal::Interrupt)
    }

    fn leave(&mut self) -> Leave {
        Leave::Signal(Signal::Terminate)
    }

    fn checkpoint(&self) -> Option<ReaderCheckpoint> {
        let (version, state) = (VERSION.to_owned(), self.ended.to_string());
        (!self.over).then_some(ReaderCheckpoint { version, offset: self.heard, state })
    }

    fn restore(&mut self, checkpoint: &ReaderCheckpoint) -> Result<(), IncompatibleCheckpoint> {
        let ended = (checkpoint.version == VERSION).then(|| checkpoint.state.parse().ok()).flatten();
        let (found, expected) = (checkpoint.version.clone(), VERSION.to_owned());
        let ended = ended.ok_or(IncompatibleCheckpoint { found, expected })?;
        *self = Self { unfinished: vec![], heard: checkpoint.offset, ended, over: false };
        Ok(())
    }
}
