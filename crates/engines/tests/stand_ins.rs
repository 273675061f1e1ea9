//! Tests of adapters whose programs are no longer available, with stand-ins that the adapter starts and reads.
//!
//! They show that an adapter agrees with the documentation, not that the documentation is right.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use abide_domain::{
    effect::LaunchSession,
    engine::{EngineSessionHandle, ProfileKind},
    event::TurnOutcome,
    process::ExitStatus,
    settings::ExecutionMode,
};
use abide_engines::registry;
use abide_ports::engine::{
    AdapterBasis, Engine, EngineInstallation, ExitCause, FactKind, LaunchContext, ProbeResult, ProcessExit,
    ProcessStdin, PromptSource,
};

#[test]
fn iflow_is_resumed_with_the_session_that_it_named() {
    for block in ["stdout", "stderr"] {
        let (engine, installation) = iflow(block);
        assert_eq!(engine.adapter_basis(), AdapterBasis::Documented);
        let (first, ending) = turn(&*engine, &installation, &LaunchSession::New, "one\n\n- two");
        assert_eq!(ending, TurnOutcome::Completed { text: "I was told:\n\none\n\n- two".to_owned() });
        let first = first.unwrap();
        let (second, ending) = turn(&*engine, &installation, &LaunchSession::Resumed(first.clone()), "three");
        assert_eq!(second.as_ref(), Some(&first));
        assert_eq!(ending, TurnOutcome::Completed { text: "I was told:\n\none\n\n- two\nthree".to_owned() });
    }
}

/// The tests with real processes show that the process is then held.
#[test]
fn iflow_that_shows_no_resume_is_to_be_held() {
    let (engine, mut installation) = iflow("stdout");
    let kind = |installation: &EngineInstallation| {
        let results = engine.probe_commands(installation).into_iter().map(|check| {
            let output = command(&check.argv, &check.env).output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            let (stdout, stderr) = (text(output.stdout), text(output.stderr));
            ProbeResult::Ran { code: output.status.code(), stdout, stderr }
        });
        engine.assess_health(&results.collect::<Vec<_>>()).profile_kind()
    };
    assert_eq!(kind(&installation), ProfileKind::Resumable);
    installation.env.insert("IFLOW_STAND_IN_RESUME".to_owned(), "no".to_owned());
    assert_eq!(kind(&installation), ProfileKind::StickyProcess);
}

/// The adapter, and the stand-in with a temporary folder for sessions.
fn iflow(block: &str) -> (Box<dyn Engine>, EngineInstallation) {
    let engines = registry::built_in();
    let engine = engines.into_iter().find(|engine| engine.name() == "iflow").expect("iflow is built in");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand-ins/iflow");
    let name = std::thread::current().name().expect("a test has a name").to_owned();
    let sessions = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{block}"));
    fs::create_dir_all(&sessions).expect("the target folder can be written");
    let mut installation = EngineInstallation::for_program(&program.to_string_lossy());
    installation.env.insert("IFLOW_STAND_IN".to_owned(), sessions.to_string_lossy().into_owned());
    installation.env.insert("IFLOW_STAND_IN_BLOCK".to_owned(), block.to_owned());
    (engine, installation)
}

/// Runs one turn to its end.
fn turn(
    engine: &dyn Engine,
    installation: &EngineInstallation,
    session: &LaunchSession,
    prompt: &str,
) -> (Option<EngineSessionHandle>, TurnOutcome) {
    let context = LaunchContext {
        installation,
        kind: ProfileKind::Resumable,
        session,
        prompt,
        workspace: "/somewhere",
        private_dir: "/elsewhere",
        mode: ExecutionMode::Interactive,
        model: Some("a-model"),
        sandbox: None,
        isolation: Default::default(),
        skill: None,
        session_started_at: None,
        resume_detail: "",
        prompt_source: PromptSource::Message,
    };
    let launch = engine.launch(&context).expect("a turn can be started");
    let ProcessStdin::Complete(input) = launch.stdin else {
        panic!("a turn of its own reads its prompt whole")
    };
    let mut child = command(&launch.argv, &launch.env).spawn().expect("the stand-in is executable");
    child.stdin.take().expect("it was piped").write_all(&input).expect("the stand-in reads its prompt");
    let output = child.wait_with_output().expect("the stand-in ends");
    let mut interpreter = engine.interpreter(&context);
    let mut facts = interpreter.feed(&output.stdout);
    let exit = ExitStatus::Code(output.status.code().expect("the process exits by itself"));
    facts.extend(interpreter.on_exit(&ProcessExit {
        status: exit,
        stderr: &output.stderr,
        cause: ExitCause::Voluntary,
    }));
    let mut handle = None;
    for fact in facts {
        match fact.kind {
            FactKind::Session { handle_type, value } => {
                let engine = engine.name().to_owned();
                handle = Some(EngineSessionHandle {
                    engine,
                    handle_type,
                    handle_value: value,
                    created_at_turn: 1,
                });
            }
            FactKind::TurnEnded { outcome: ending, .. } => return (handle, ending),
            FactKind::Text(_)
            | FactKind::Progress(_)
            | FactKind::Warning(_)
            | FactKind::Gate { .. }
            | FactKind::GateWithdrawn { .. }
            | FactKind::WriteStdin(_)
            | FactKind::OutputComplete
            | FactKind::UnknownLine(_) => {}
        }
    }
    panic!("the turn has no end")
}

#[expect(clippy::disallowed_methods, reason = "a test plays the part of the keeper")]
fn command(argv: &[String], env: &[(String, String)]) -> Command {
    let (program, arguments) = argv.split_first().expect("a command has a program");
    let mut command = Command::new(program);
    command.args(arguments).envs(env.iter().cloned());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
