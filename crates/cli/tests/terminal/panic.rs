//! A panic in the runtime ends the affected session and no other.

use std::sync::{
    Mutex,
    mpsc::{RecvTimeoutError, channel},
};
use std::time::Duration;

use abide_os::failpoint;
use abide_terminal::{
    CallTicket, CreateSessionRequest, ExecRequest, ExecResult, KeeperLauncher, RuntimeHandle, SessionId,
    SessionState, TerminalCall, TerminalCallResult, TerminalConfig, TerminalError, TerminalErrorCode,
    TerminalLimits,
};

use crate::support;

/// The session for which the runtime panics.
static PANIC_SESSION: Mutex<Option<SessionId>> = Mutex::new(None);

fn panic_for_victim(_name: &'static str, session: &str) {
    let is_victim = PANIC_SESSION.lock().unwrap().as_ref().is_some_and(|victim| victim.as_str() == session);
    assert!(!is_victim, "the runtime breaks, as the test wants");
}

fn ask<R: TerminalCallResult + Send>(
    handle: &RuntimeHandle,
    call: impl FnOnce(CallTicket<R>) -> TerminalCall,
) -> Result<R, TerminalError> {
    let (sender, receiver) = channel();
    handle.call(call, move |reply| sender.send(reply).unwrap());
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(reply) => reply,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!("the runtime is mute"),
    }
}

fn create(handle: &RuntimeHandle) -> SessionId {
    let create = |ticket| TerminalCall::Create(CreateSessionRequest::default(), ticket);
    ask(handle, create).unwrap().session
}

fn run(handle: &RuntimeHandle, session: &SessionId, command: &str) -> Result<ExecResult, TerminalError> {
    let (session, command) = (session.clone(), command.to_owned());
    let execute =
        ExecRequest { session, command, timeout_ms: None, stdin: None, env: vec![], max_output_bytes: None };
    ask(handle, |ticket| TerminalCall::Run(execute, ticket))
}

#[test]
fn a_panic_ends_the_session_that_it_was_about_and_no_other() {
    failpoint::install(panic_for_victim);
    let home = support::home();
    let handle = RuntimeHandle::start(TerminalConfig {
        keepers_dir: home.path().join("keepers"),
        launcher: KeeperLauncher {
            program: env!("CARGO_BIN_EXE_abide").into(),
            arguments: vec!["__keeper".to_owned()],
            groups: None,
        },
        env: std::env::vars().collect(),
        cwd: "/".to_owned(),
        shell: "/bin/sh".to_owned(),
        detached: false,
        limits: TerminalLimits::default(),
    })
    .unwrap();
    let (victim, other) = (create(&handle), create(&handle));
    run(&handle, &victim, "x=1").unwrap();
    run(&handle, &other, "x=2").unwrap();
    *PANIC_SESSION.lock().unwrap() = Some(victim.clone());
    let broken = run(&handle, &victim, "echo $x").unwrap_err();
    assert_eq!(broken.code, TerminalErrorCode::Internal, "{broken:?}");
    *PANIC_SESSION.lock().unwrap() = None;
    let ran = run(&handle, &other, "echo $x").unwrap();
    assert_eq!(ran.result.stdout, b"2\n", "the other session has its state");
    let info = ask(&handle, |ticket| TerminalCall::Info(victim, ticket)).unwrap();
    assert_eq!(info.state, SessionState::Terminated);
    let fresh = create(&handle);
    run(&handle, &fresh, "true").unwrap();
}
