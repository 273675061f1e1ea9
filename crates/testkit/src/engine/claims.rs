//! Checks of the abilities that an adapter claims, and of its refusal of the others.

use std::collections::BTreeSet;

use abide_domain::{
    approval::ApprovalVerdict, effect::LaunchSession, engine::ProfileKind, failure::FailureCode,
    interaction::GatePurpose,
};
use abide_ports::engine::{
    Engine, EngineAbility, EngineSessionStatus, FactKind, GateAnswer, ProbeResult, SandboxMode,
    UnsupportedOperation,
};

use super::story::{RecordedProcess, handle};

/// A session id that every engine accepts.
const SESSION_ID: &str = "01a1e0b7-8feb-7f42-a76c-eeeb075097aa";

pub(super) fn check_unclaimed_refused(engine: &dyn Engine) {
    let (name, abilities, installation) = (engine.name(), engine.abilities(), engine.installation());
    let recording = RecordedProcess::new("claims", b"");
    let mut interpreter = engine.interpreter(&recording.launch_context(&installation, &LaunchSession::New));
    let answer = GateAnswer { gate_id: "g", text: "yes", verdict: None };
    for (ability, outcome) in [
        (EngineAbility::Hold, interpreter.encode_prompt("hello")),
        (EngineAbility::Gates, interpreter.encode_answer(&answer)),
        (EngineAbility::Steer, interpreter.encode_steer("left")),
    ] {
        if !abilities.has(ability) {
            assert_eq!(
                outcome,
                Err(UnsupportedOperation::MissingAbility { ability }),
                "{name} lacks {}",
                ability.name()
            );
        }
    }
    let named = engine.new_session_handle(SESSION_ID);
    assert_eq!(
        named.is_some(),
        abilities.has(EngineAbility::NamedSessions),
        "{name}: whether we may name sessions"
    );
    assert!(named.is_none_or(|handle| handle.engine == name), "{name}: a handle is its own");
    let resumed = engine.launch(
        &recording.launch_context(&installation, &LaunchSession::Resumed(handle(engine, SESSION_ID))),
    );
    if abilities.has(EngineAbility::Resume) {
        assert!(resumed.is_ok(), "{name} claims to resume: {resumed:?}");
    } else {
        assert_eq!(
            resumed,
            Err(UnsupportedOperation::MissingAbility { ability: EngineAbility::Resume }),
            "{name} lacks resume"
        );
    }
    assert!(
        abilities.has(EngineAbility::Resume) || abilities.has(EngineAbility::Hold),
        "{name}: an engine that can neither resume nor be held cannot have a second turn"
    );
}

/// Each claimed ability can be used at some point of the recorded processes.
pub(super) fn check_claimed_usable(engine: &dyn Engine, stories: &[RecordedProcess]) {
    let used: BTreeSet<EngineAbility> =
        stories.iter().flat_map(|recording| usable_abilities(engine, recording)).collect();
    for ability in [EngineAbility::Hold, EngineAbility::Gates, EngineAbility::Steer, EngineAbility::Progress]
    {
        assert!(
            used.contains(&ability) || !engine.abilities().has(ability),
            "{} claims {}, and no recording shows it",
            engine.name(),
            ability.name()
        );
    }
}

/// Returns the abilities that could be used while a recorded process ran.
fn usable_abilities(engine: &dyn Engine, recording: &RecordedProcess) -> Vec<EngineAbility> {
    let (installation, session) = (engine.installation(), recording.session(engine));
    let mut interpreter = engine.interpreter(&recording.launch_context(&installation, &session));
    let mut used = Vec::new();
    for line in recording.stdout.split_inclusive(|byte| *byte == b'\n') {
        for fact in interpreter.feed(line) {
            match fact.kind {
                FactKind::Progress(_) => used.push(EngineAbility::Progress),
                FactKind::Gate { gate_id: gate, purpose, .. } => {
                    let verdict =
                        matches!(purpose, GatePurpose::Approval).then_some(ApprovalVerdict::Approved);
                    let answer = GateAnswer { gate_id: &gate, text: "yes", verdict };
                    used.extend(
                        is_nonempty(interpreter.encode_answer(&answer)).then_some(EngineAbility::Gates),
                    );
                }
                FactKind::TurnEnded { .. } if interpreter.status() == EngineSessionStatus::BetweenTurns => {
                    used.extend(
                        is_nonempty(interpreter.encode_prompt("more")).then_some(EngineAbility::Hold),
                    );
                }
                FactKind::Session { .. }
                | FactKind::Text(_)
                | FactKind::Warning(_)
                | FactKind::GateWithdrawn { .. }
                | FactKind::WriteStdin(_)
                | FactKind::OutputComplete
                | FactKind::TurnEnded { .. }
                | FactKind::UnknownLine(_) => {}
            }
        }
        if interpreter.status() == EngineSessionStatus::Working {
            used.extend(is_nonempty(interpreter.encode_steer("left")).then_some(EngineAbility::Steer));
        }
    }
    used
}

fn is_nonempty(bytes: Result<Vec<u8>, UnsupportedOperation>) -> bool {
    bytes.is_ok_and(|bytes| !bytes.is_empty())
}

/// Settings that have an effect on turn 1 have the same effect on turn 2 (A4).
pub(super) fn check_settings_on_every_turn(engine: &dyn Engine) {
    let (name, installation) = (engine.name(), engine.installation());
    let mut sessions = vec![LaunchSession::New];
    sessions.extend(engine.new_session_handle(SESSION_ID).map(LaunchSession::Named));
    if engine.abilities().has(EngineAbility::Resume) {
        sessions.push(LaunchSession::Resumed(handle(engine, SESSION_ID)));
    }
    let recording = RecordedProcess::new("settings", b"");
    let sandboxes =
        [None, Some(SandboxMode::ReadOnly), Some(SandboxMode::WorkspaceWrite), Some(SandboxMode::FullAccess)];
    let differences = |session: &LaunchSession| -> Vec<bool> {
        let plain = recording.launch_context(&installation, session);
        let mut variants = vec![plain];
        variants.extend(sandboxes.map(|sandbox| abide_ports::engine::LaunchContext { sandbox, ..plain }));
        variants.push(abide_ports::engine::LaunchContext { model: Some("a-model"), ..plain });
        let seen = variants.iter().map(|context| {
            // A setting may be part of the command, or be sent over the protocol later.
            (
                engine.launch(context).map(|launch| format!("{launch:?}")),
                format!("{:?}", engine.interpreter(context)),
            )
        });
        let seen: Vec<_> = seen.collect();
        seen.iter().map(|variant| Some(variant) != seen.first()).collect()
    };
    let first = sessions.first().map(&differences);
    for session in &sessions {
        assert_eq!(Some(differences(session)), first, "{name}: settings hold with {session:?}");
    }
    assert_eq!(first.and_then(|first| first.last().copied()), Some(true), "{name}: a model can be chosen");
}

pub(super) fn check_missing_program(engine: &dyn Engine) {
    let (name, installation) = (engine.name(), engine.installation());
    let checks = engine.probe_commands(&installation);
    assert!(!checks.is_empty(), "{name} can be checked");
    for check in &checks {
        assert!(check.argv.starts_with(&installation.command), "{name}: a check runs the configured command");
    }
    let missing = ProbeResult::NotFound { reason: "no such file".to_owned() };
    let health = engine.assess_health(&vec![missing; checks.len()]);
    let failure = health.failure.expect("a missing program is a failure");
    assert_eq!(failure.code, FailureCode::EngineNotFound, "{name}");
    assert!(failure.message.contains(name), "{name}: the message names the engine: {}", failure.message);
    assert_eq!(health.version, None, "{name}: a missing program has no version");
    // The evaluation of a version check never panics.
    let empty = ProbeResult::Ran { code: Some(0), stdout: String::new(), stderr: String::new() };
    let failing = ProbeResult::Ran { code: Some(1), stdout: String::new(), stderr: "no".to_owned() };
    let unavailable = ProbeResult::Unavailable { reason: "no memory".to_owned() };
    for odd in [empty, failing, unavailable, ProbeResult::TimedOut] {
        let health = engine.assess_health(&vec![odd.clone(); checks.len()]);
        assert_eq!(health.failure, None, "{name}: a failed probe never rejects the run (A3): {odd:?}");
        assert_eq!(
            health.profile_kind(),
            ProfileKind::StickyProcess,
            "{name}: an unseen fact is not reported"
        );
    }
}

pub(super) fn check_launch_is_deterministic(engine: &dyn Engine) {
    let (name, installation) = (engine.name(), engine.installation());
    let recording = RecordedProcess::new("same", b"");
    let context = recording.launch_context(&installation, &LaunchSession::New);
    let launch = engine.launch(&context).expect("a first turn can be started");
    assert_eq!(Ok(&launch), engine.launch(&context).as_ref(), "{name}");
    assert!(launch.argv.starts_with(&installation.command), "{name}: the configured command is run");
    let stays_inside = |path: &str| !path.starts_with('/') && path.split('/').all(|part| part != "..");
    assert!(
        launch.files.iter().all(|file| stays_inside(&file.relative_path)),
        "{name}: files stay in the private folder"
    );
}
