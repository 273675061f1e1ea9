//! The scenarios that every engine must pass.

use abide_domain::{
    engine::ProfileKind,
    failure::FailureCode,
    interaction::{InteractionOrigin, RuntimeQuestion},
    run::RunStatus,
    settings::ExecutionMode::{Chat, Interactive},
    turn::ExecutionStatus,
};
use abide_testkit::model::{ModelScript, ScriptedAnswer, TestGate};

use crate::harness::ProgramTestDaemon;

/// An answer that ends the turn with a question.
pub(crate) fn question_answer(prompt: &str) -> ScriptedAnswer {
    ScriptedAnswer::say(format!(
        "I have looked around.\n\n```abide-question\n{{\"kind\": \"choose_one\", \"prompt\": \"{prompt}\", \
         \"options\": [\"red\", {{\"label\": \"blue\", \"safe\": true}}]}}\n```\n"
    ))
}

pub(crate) fn a_new_process_gets_the_answer_and_can_ask_again(engine: &str) {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("paint the shed"), question_answer("Which colour?"))
        .when_once(|request| request.prompt_contains("crimson"), question_answer("And the door?"))
        .when_once(|request| request.prompt_contains("ivory"), ScriptedAnswer::say("All is painted."));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start(Interactive, "paint the shed");
    let waiting = daemon.wait_for_status(run, RunStatus::WaitingUser);
    let question = daemon.question(run).question;
    assert_eq!(question.prompt, "Which colour?");
    assert_eq!(question.options.len(), 2);
    let resumable = waiting.profile.as_ref().map(|profile| profile.kind) == Some(ProfileKind::Resumable);
    assert!(waiting.handle.is_some(), "the handle is durable before a question is asked");
    // A resumable engine keeps no process while it waits.
    daemon.wait_until(run, "the end of its process", |_| daemon.process_names().is_empty() == resumable);
    daemon.reply(run, "crimson");
    daemon.wait_until(run, "its second question", |run| {
        run.status() == RunStatus::WaitingUser && run.turn_index == 2 && run.pending_effects.is_empty()
    });
    assert_eq!(daemon.question(run).question.prompt, "And the door?");
    daemon.reply(run, "ivory");
    let done = daemon.wait_for_status(run, RunStatus::Succeeded);
    assert_eq!(done.result.as_deref().map(str::trim), Some("All is painted."));
    let request = daemon.model.turns();
    let last = request.last().expect("the model was asked");
    for prompt in ["paint the shed", "crimson", "ivory"] {
        let times = last.user_texts().iter().filter(|text| text.contains(prompt)).count();
        assert_eq!(times, 1, "the third turn carries {prompt:?} once: {:?}", last.user_texts());
    }
    let pids: std::collections::BTreeSet<_> = daemon
        .turns(run)
        .iter()
        .flat_map(|turn| turn.attempts.iter().filter_map(|attempt| attempt.process.clone()))
        .map(|process| (process.pid, process.start_time))
        .collect();
    assert_eq!(pids.len(), if resumable { 3 } else { 1 }, "one process for each turn, or one for all");
    daemon.wait_until(run, "the end of all processes", |_| daemon.process_names().is_empty());
}

pub(crate) fn a_lost_session_is_detected_and_reported(engine: &str) {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("paint"), question_answer("Which colour?"));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start(Interactive, "paint the shed");
    let waiting = daemon.wait_for_status(run, RunStatus::WaitingUser);
    // The program's session consists of the files that contain its id.
    let id = waiting.handle.expect("the handle is known").handle_value;
    delete_session_files(daemon.home.path(), &id);
    daemon.reply(run, "red");
    let failed = daemon.wait_for_status(run, RunStatus::Failed);
    let failure = failed.error().expect("it says why").clone();
    assert_eq!(failure.code, FailureCode::SessionResumeFailed, "{}", failure.message);
    assert_eq!(daemon.open_questions(), 0);
}

pub(crate) fn exit_code_0_without_a_result_is_a_failure(engine: &str) {
    let stops = [
        ("wait for the tide", rustix::process::Signal::INT, TestGate::new()),
        ("wait for the moon", rustix::process::Signal::TERM, TestGate::new()),
    ];
    let mut script = ModelScript::new()
        .when(|request| request.prompt_contains("break"), ScriptedAnswer::status(400, "the model says no"));
    for (prompt, _, gate) in &stops {
        script = script
            .when(|request| request.prompt_contains(prompt), ScriptedAnswer::say("too late").held_by(gate));
    }
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let broken = daemon.start(Interactive, "break");
    let failed = daemon.wait_for_status(broken, RunStatus::Failed);
    assert_eq!(failed.error().map(|failure| failure.code), Some(FailureCode::EngineFailed));
    // Some programs exit with code 0 when they are asked to stop, without having printed a result.
    let mut interrupted = Vec::new();
    for (prompt, signal, gate) in &stops {
        let stopped = daemon.start(Interactive, prompt);
        gate.wait_reached();
        let live = daemon.wait_until(stopped, "a process", |run| run.live().is_some());
        kill(live.live().expect("it was just there").process.pid, *signal);
        // Other programs report an interruption; then a person must decide how to continue.
        let settled = [RunStatus::Failed, RunStatus::WaitingUser];
        let after = daemon.wait_until(stopped, "an end", |run| settled.contains(&run.status()));
        let turn = daemon.turns(stopped).remove(0);
        if after.status() == RunStatus::WaitingUser {
            assert_eq!(turn.execution_status, ExecutionStatus::Interrupted, "{prompt}: {turn:?}");
            assert_eq!(
                daemon.question(stopped).origin,
                InteractionOrigin::Abide(RuntimeQuestion::Interrupted),
                "{prompt}"
            );
            interrupted.push(*signal);
            daemon.cancel(stopped);
            daemon.wait_for_status(stopped, RunStatus::Canceled);
        } else {
            let code = after.error().map(|failure| failure.code);
            assert_eq!(code, Some(FailureCode::EngineFailed), "{prompt}: {after:?}");
            assert_eq!(turn.execution_status, ExecutionStatus::Failed, "{prompt}: {turn:?}");
        }
    }
    let expected =
        TELLS_OF_SIGNALS.iter().find(|(name, _)| *name == engine).map_or(&[][..], |(_, signals)| signals);
    // The behaviour of this program depends on the time of the signal.
    interrupted.retain(|signal| !(engine == "claude" && *signal == rustix::process::Signal::INT));
    assert_eq!(interrupted, expected, "which signals {engine} reports as an interruption");
}

/// Programs that report a signal as an interruption of their turn, as measured. For all others a signal is a failure.
const TELLS_OF_SIGNALS: [(&str, &[rustix::process::Signal]); 2] = [
    ("claude-acp", &[rustix::process::Signal::INT, rustix::process::Signal::TERM]),
    ("native", &[rustix::process::Signal::INT, rustix::process::Signal::TERM]),
];

pub(crate) fn a_wrong_key_is_reported_as_auth_required(engine: &str) {
    let script = ModelScript::new()
        .when(|request| request.prompt_contains("knock"), ScriptedAnswer::status(401, "Unauthorized"));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start(Interactive, "knock");
    let failed = daemon.wait_for_status(run, RunStatus::Failed);
    let failure = failed.error().expect("it says why").clone();
    assert_eq!(failure.code, FailureCode::EngineAuthRequired, "{}", failure.message);
}

pub(crate) fn a_missing_program_and_a_missing_workspace_are_distinguished(engine: &str) {
    let Some(daemon) = ProgramTestDaemon::with_config(engine, ModelScript::new(), |config, home| {
        config.command = Some(vec![home.join("no-such-program").to_string_lossy().into_owned()]);
    }) else {
        return;
    };
    let run = daemon.start(Interactive, "hello");
    let failed = daemon.wait_for_status(run, RunStatus::Failed);
    assert_eq!(failed.error().map(|failure| failure.code), Some(FailureCode::EngineNotFound));
    drop(daemon);
    let Some(daemon) = ProgramTestDaemon::new(engine, ModelScript::new()) else { return };
    let missing_folder = daemon.home.path().join("no-such-folder");
    let run = daemon.start_with(Interactive, "hello", |settings| {
        settings.workspace = missing_folder.to_string_lossy().into_owned();
    });
    let failed = daemon.wait_for_status(run, RunStatus::Failed);
    assert_eq!(failed.error().map(|failure| failure.code), Some(FailureCode::WorkspaceUnusable));
}

pub(crate) fn a_chat_continues_after_its_engine_was_killed_in_a_turn(engine: &str) {
    let gate = TestGate::new();
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("begin"), ScriptedAnswer::say("Begun."))
        .when_once(|request| request.prompt_contains("dig"), ScriptedAnswer::say("Dug.").held_by(&gate))
        .when(|request| request.prompt_contains("rest"), ScriptedAnswer::say("Resting."));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start(Chat, "begin");
    daemon.wait_for_status(run, RunStatus::Idle);
    daemon.send_message(run, "dig");
    gate.wait_reached();
    let live =
        daemon.wait_until(run, "a process", |run| run.live().is_some() && run.pending_effects.is_empty());
    kill(live.live().expect("it was just there").process.pid, rustix::process::Signal::KILL);
    daemon
        .wait_until(run, "rest after the blow", |run| run.status() == RunStatus::Idle && run.turn_index == 2);
    daemon.send_message(run, "rest");
    let rested = daemon.wait_until(run, "an answer", |run| {
        run.status() == RunStatus::Idle && run.turn_index == 3 && run.pending_effects.is_empty()
    });
    assert_eq!(rested.result.as_deref().map(str::trim), Some("Resting."));
    let request = daemon.model.turns();
    let last = request.last().expect("the model was asked");
    assert!(last.user_texts().iter().any(|text| text.contains("begin")), "{:?}", last.user_texts());
    // Some programs join the unanswered message with the next one; such a request comes from the person.
    let again = daemon
        .model
        .turns()
        .iter()
        .filter(|request| request.prompt_contains("dig") && !request.prompt_contains("rest"))
        .count();
    assert_eq!(again, 1, "a killed turn is not run again by itself");
}

pub(crate) fn leftover_processes_of_a_tool_are_ended(engine: &str) {
    // A number that no other process on this machine has in its command line.
    let mark = 100_000 + std::process::id() % 100_000;
    let command = format!("setsid sleep 7{mark} >/dev/null 2>&1 & sleep 0.2; echo left it there");
    let stays = TestGate::new();
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("leave something"), ScriptedAnswer::shell(&command))
        .when(
            |request| !request.new_tool_results().is_empty(),
            ScriptedAnswer::say("It is there.").held_by(&stays),
        );
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start_with(Interactive, "leave something", |settings| {
        settings.sandbox = Some("danger-full-access".to_owned());
    });
    stays.wait_reached();
    let is_left = is_running(&format!("sleep\07{mark}"));
    assert_eq!(is_left, !TIDIES_UP.contains(&engine), "the tool has left something");
    daemon.cancel(run);
    daemon.wait_for_status(run, RunStatus::Canceled);
    assert!(!is_running(&format!("sleep\07{mark}")), "processes of the tool are ended");
}

/// Programs that end the background processes of a tool call with the call.
const TIDIES_UP: [&str; 1] = ["native"];

pub(crate) fn twenty_turns_in_a_row_keep_the_whole_history(engine: &str) {
    let Some(daemon) = ProgramTestDaemon::new(engine, ModelScript::new()) else { return };
    let run = daemon.start(Chat, "stone 1 of the wall");
    daemon.wait_for_status(run, RunStatus::Idle);
    for turn in 2..=20 {
        daemon.send_message(run, &format!("stone {turn} of the wall"));
        daemon.wait_until(run, &format!("turn {turn}"), |run| {
            run.status() == RunStatus::Idle && run.turn_index == turn && run.pending_effects.is_empty()
        });
    }
    let request = daemon.model.turns();
    let last = request.last().expect("the model was asked");
    let stones: Vec<String> =
        last.user_texts().into_iter().filter(|text| text.contains("of the wall")).collect();
    assert_eq!(stones.len(), 20, "{stones:?}");
    for (stone, number) in stones.iter().zip(1..) {
        assert!(stone.contains(&format!("stone {number} of the wall")), "{stones:?}");
    }
}

pub(crate) fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("the process was just there");
}

/// Whether a process with this text in its command line runs.
fn is_running(words: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").filter_map(Result::ok);
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).contains(words))
}

/// Removes all files and folders below `folder` whose name contains this id, and all files whose text does.
fn delete_session_files(folder: &std::path::Path, id: &str) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        let named = entry.file_name().to_string_lossy().contains(id);
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if named {
                // The folder may have been deleted by the program.
                std::fs::remove_dir_all(&path).ok();
            } else if !path.ends_with("keepers") && !path.ends_with("runs") {
                delete_session_files(&path, id);
            }
            continue;
        }
        let holds = std::fs::read(&path).is_ok_and(|bytes| contains_bytes(&bytes, id.as_bytes()));
        if named || holds {
            // The file may have been deleted by the program.
            std::fs::remove_file(&path).ok();
        }
    }
}

fn contains_bytes(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
