//! Probing an engine: failures are retried within bounds, and only a missing program is reported as missing (A3).

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use abide_daemon::probe::{ProbeRequest, examine};
use abide_domain::{
    engine::ProfileKind,
    failure::FailureCode,
    process::{ExitStatus, ProcessBinding},
    time::Timestamp,
};
use abide_engines::registry;
use abide_ports::{
    catalogue::InstalledEngine,
    engine::{EngineHealth, ProcessSignal},
    processes::{
        OutputFollower, OutputOffsets, ProcessLookup, ProcessOutput, ProcessUnreachable, Processes,
        StartError, StartRequest, StdinWrite,
    },
};

/// The scripted result of a check.
#[derive(Clone, Copy, Debug)]
enum ScriptedCheck {
    Tells(&'static str),
    Exits(i32),
    Missing,
    NoMemory,
    Hangs,
}

/// A fake machine whose checks follow a script. The last entry repeats.
struct ScriptedMachine {
    plan: Mutex<VecDeque<ScriptedCheck>>,
    started: Mutex<Vec<String>>,
}

impl ScriptedMachine {
    fn new(plan: &[ScriptedCheck]) -> Self {
        Self { plan: Mutex::new(plan.iter().copied().collect()), started: Mutex::default() }
    }

    fn next(&self) -> ScriptedCheck {
        let mut plan = self.plan.lock().unwrap();
        if plan.len() > 1 { plan.pop_front().unwrap() } else { plan[0] }
    }

    fn started(&self) -> usize {
        self.started.lock().unwrap().len()
    }
}

struct ScriptedOutput(VecDeque<ProcessOutput>);

impl OutputFollower for ScriptedOutput {
    #[expect(
        clippy::disallowed_methods,
        reason = "a program that says nothing for a while is what is wanted"
    )]
    fn next(&mut self, timeout: Option<Duration>) -> Result<ProcessOutput, ProcessUnreachable> {
        Ok(self.0.pop_front().unwrap_or_else(|| {
            std::thread::sleep(timeout.unwrap_or_default());
            ProcessOutput::TimedOut
        }))
    }
}

impl Processes for ScriptedMachine {
    fn start(&self, name: &str, _: &StartRequest<'_>) -> Result<ProcessBinding, StartError> {
        {
            let mut started = self.started.lock().unwrap();
            assert!(!started.contains(&name.to_owned()), "every check has a name of its own");
            started.push(name.to_owned());
        }
        let check = self.plan.lock().unwrap()[0];
        match check {
            ScriptedCheck::Missing => Err(StartError::ProgramUnusable("codex: no such file".to_owned())),
            ScriptedCheck::NoMemory => Err(StartError::SystemError("cannot allocate memory".to_owned())),
            ScriptedCheck::Tells(_) | ScriptedCheck::Exits(_) | ScriptedCheck::Hangs => {
                Ok(ProcessBinding { keeper: name.to_owned(), pid: 7, start_time: 1, boot_id: "b".to_owned() })
            }
        }
        .inspect_err(|_| {
            self.next();
        })
    }

    fn follow(&self, _: &str, _: OutputOffsets) -> Result<Box<dyn OutputFollower>, ProcessUnreachable> {
        let heard = match self.next() {
            ScriptedCheck::Tells(text) => {
                vec![ProcessOutput::Stdout(text.into()), ProcessOutput::Exited(ExitStatus::Code(0))]
            }
            ScriptedCheck::Exits(code) => vec![
                ProcessOutput::Stderr(b"not now".to_vec()),
                ProcessOutput::Exited(ExitStatus::Code(code)),
            ],
            ScriptedCheck::Hangs | ScriptedCheck::Missing | ScriptedCheck::NoMemory => vec![],
        };
        Ok(Box::new(ScriptedOutput(heard.into())))
    }

    fn find(&self, _: &str) -> ProcessLookup {
        ProcessLookup::NotStarted
    }

    fn last_output_at(&self, _: &str) -> Option<Timestamp> {
        None
    }

    fn write(&self, _: &str, _: &StdinWrite<'_>) -> Result<(), ProcessUnreachable> {
        Ok(())
    }

    fn signal(&self, _: &str, _: ProcessSignal) -> Result<(), ProcessUnreachable> {
        Ok(())
    }

    fn terminate(&self, _: &str) -> Result<ExitStatus, ProcessUnreachable> {
        Ok(ExitStatus::Unknown)
    }

    fn names(&self) -> Vec<String> {
        vec![]
    }
}

const VERSION: ScriptedCheck = ScriptedCheck::Tells("codex-cli 1.2.3");
const HELP: ScriptedCheck = ScriptedCheck::Tells("Usage: codex exec resume [SESSION_ID]");

fn health(machine: &ScriptedMachine, timeout: Option<Duration>) -> EngineHealth {
    let engine = registry::built_in().into_iter().find(|engine| engine.name() == "codex").unwrap();
    let installation = engine.installation();
    let entry = InstalledEngine { engine: engine.into(), installation, binary_placeholder: None };
    examine(machine, &entry, &ProbeRequest { directory: "/", unique: "u", timeout, is_cancelled: &|| false })
}

#[test]
fn a3_a_check_that_fails_once_is_run_again() {
    for trouble in [ScriptedCheck::Exits(1), ScriptedCheck::NoMemory] {
        for plan in [[trouble, HELP, VERSION], [VERSION, trouble, HELP]] {
            let machine = ScriptedMachine::new(&plan);
            let health = health(&machine, None);
            assert_eq!(health.failure, None, "{plan:?}");
            assert_eq!(health.version.as_deref(), Some("1.2.3"), "{plan:?}");
            assert_eq!(health.profile_kind(), ProfileKind::Resumable, "{plan:?}");
            assert_eq!(machine.started(), 3, "only what failed is run again");
        }
    }
}

#[test]
fn a3_a_probe_that_fails_to_the_end_makes_the_run_sticky_and_says_why() {
    for (trouble, said) in [
        (ScriptedCheck::Exits(3), "exited with code 3: not now"),
        (ScriptedCheck::NoMemory, "allocate memory"),
    ] {
        let machine = ScriptedMachine::new(&[trouble]);
        let health = health(&machine, None);
        assert_eq!(
            (health.failure.clone(), health.profile_kind()),
            (None, ProfileKind::StickyProcess),
            "{trouble:?}"
        );
        assert!(health.resume.detail.contains(said), "{}", health.resume.detail);
        assert!(machine.started() <= 8, "{trouble:?}: {} checks", machine.started());
    }
}

#[test]
fn a3_a_missing_program_is_looked_for_once_and_not_found() {
    let machine = ScriptedMachine::new(&[ScriptedCheck::Missing]);
    let health = health(&machine, None);
    assert_eq!(health.failure.map(|trouble| trouble.code), Some(FailureCode::EngineNotFound));
    assert!(machine.started() <= 2, "{}", machine.started());
}

#[test]
fn a3_a_program_that_never_answers_is_not_called_missing() {
    let machine = ScriptedMachine::new(&[ScriptedCheck::Hangs]);
    let health = health(&machine, Some(Duration::from_millis(50)));
    assert_eq!((health.failure, machine.started()), (None, 1));
    assert!(health.resume.detail.contains("in time"), "{}", health.resume.detail);
}

#[test]
fn a3_a_busy_machine_may_take_its_time_to_tell_a_version() {
    // `--version` was observed to take 25 s.
    assert!(abide_ports::engine::ProbeCommand::to_exit([]).timeout_ms >= 45_000);
}
