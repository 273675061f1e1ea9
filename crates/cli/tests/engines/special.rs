//! Behaviour of single engines: abilities that others lack, and actions that must be prevented.

use std::{os::unix::fs::PermissionsExt, path::Path};

use abide_domain::{
    engine::ProfileKind,
    failure::FailureCode,
    interaction::{InteractionOrigin, RuntimeQuestion},
    run::{Run, RunStatus},
    settings::ExecutionMode::{Auto, Chat, Interactive},
};
use abide_engines::catalogue::EngineConfig;
use abide_testkit::{
    model::{ModelScript, ScriptedAnswer},
    skip::skip,
};

use crate::{
    harness::ProgramTestDaemon,
    stories::{kill, question_answer},
};

/// A permission is requested within the turn by a waiting process; a yes allows the action, a no prevents it.
fn permissions_are_asked_for_inside_the_turn(engine: &str) {
    let script = ModelScript::new()
        .when_once(
            |request| request.prompt_contains("write yes"),
            ScriptedAnswer::shell("echo done > yes.txt"),
        )
        .when_once(|request| request.prompt_contains("write no"), ScriptedAnswer::shell("echo done > no.txt"))
        .when(|request| !request.new_tool_results().is_empty(), ScriptedAnswer::say("I have tried."));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    for (prompt, answer, file, happens) in
        [("write yes", "yes", "yes.txt", true), ("write no", "no, leave it", "no.txt", false)]
    {
        let run = daemon.start(Interactive, prompt);
        let waiting = daemon.wait_until(run, "a request", |run| run.status() == RunStatus::WaitingUser);
        assert!(
            matches!(daemon.question(run).origin, InteractionOrigin::Gate { .. }),
            "{:?}",
            daemon.question(run)
        );
        assert!(waiting.live().is_some(), "the process waits");
        assert!(!daemon.workspace.join(file).exists(), "nothing happens before the answer");
        daemon.reply(run, answer);
        let settled = [RunStatus::Succeeded, RunStatus::WaitingUser];
        let after = daemon.wait_until(run, "an end", |run| {
            settled.contains(&run.status()) && run.pending_effects.is_empty()
        });
        assert_eq!(daemon.workspace.join(file).exists(), happens, "after {answer:?}");
        if after.status() == RunStatus::WaitingUser {
            // Some agents stop completely after a no; then a person decides how to continue.
            assert!(!happens);
            daemon.cancel(run);
        }
    }
}

#[test]
fn claude_asks_for_permission_inside_the_turn() {
    permissions_are_asked_for_inside_the_turn("claude");
}

#[test]
fn claude_over_acp_asks_for_permission_inside_the_turn() {
    permissions_are_asked_for_inside_the_turn("claude-acp");
}

#[test]
fn gemini_over_acp_asks_for_permission_inside_the_turn() {
    permissions_are_asked_for_inside_the_turn("gemini-acp");
}

/// A program that hides its resume option is kept running: the run is not rejected, and the reply goes to the same
/// process (A3).
fn without_resume_the_process_is_held(engine: &str) {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("paint the shed"), question_answer("Which colour?"))
        .when_once(|request| request.prompt_contains("crimson"), ScriptedAnswer::say("All is painted."));
    let Some(daemon) = ProgramTestDaemon::with_config(engine, script, |config, home| {
        let command = config.command.take().expect("a program that is installed has a command");
        let quoted: Vec<String> = command.iter().map(|word| format!("'{word}'")).collect();
        let words = quoted.join(" ");
        // All lines about resuming are removed from its help.
        let wrapper = format!(
            "#!/bin/sh\nfor word in \"$@\"; do case $word in --help) {words} \"$@\" 2>&1 | grep -viE 'resum|session|continue'; exit 0;; esac; done\nexec {words} \"$@\"\n"
        );
        let path = home.join("wrapper");
        std::fs::write(&path, wrapper).expect("the home can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("it can be made executable");
        config.command = Some(vec![path.to_string_lossy().into_owned()]);
    }) else {
        return;
    };
    let run = daemon.start(Interactive, "paint the shed");
    let waiting = daemon.wait_for_status(run, RunStatus::WaitingUser);
    let profile = waiting.profile.clone().expect("it was resolved before the first turn");
    assert_eq!(profile.kind, ProfileKind::StickyProcess, "{}", profile.reason);
    let held = waiting.live().expect("the process is held").process.clone();
    assert!(waiting.deadline().is_some(), "a held process is not held for ever");
    daemon.reply(run, "crimson");
    daemon.wait_for_status(run, RunStatus::Succeeded);
    let pids: Vec<u32> = daemon
        .turns(run)
        .iter()
        .flat_map(|turn| turn.attempts.iter().filter_map(|attempt| attempt.process.as_ref().map(|it| it.pid)))
        .collect();
    assert_eq!(pids, [held.pid, held.pid], "one process for both turns");
    daemon.wait_until(run, "the end of all processes", |_| daemon.process_names().is_empty());
}

#[test]
fn claude_without_resume_is_held() {
    without_resume_the_process_is_held("claude");
}

#[test]
fn gemini_without_resume_is_held() {
    without_resume_the_process_is_held("gemini");
}

#[test]
fn qwen_without_resume_is_held() {
    without_resume_the_process_is_held("qwen");
}

#[test]
fn iflow_without_resume_is_held() {
    without_resume_the_process_is_held("iflow");
}

#[test]
fn opencode_without_resume_is_held() {
    without_resume_the_process_is_held("opencode");
}

/// A run whose program can be neither resumed nor kept running is not rejected either: its first turn runs.
#[test]
fn codex_without_resume_runs_and_cannot_be_asked_back() {
    let hide = |config: &mut abide_engines::catalogue::EngineConfig, home: &std::path::Path| {
        let command = config.command.take().expect("a program that is installed has a command");
        let wrapper = format!(
            "#!/bin/sh\ncase \"$*\" in *resume*--help*) exit 2;; esac\nexec '{}' \"$@\"\n",
            command.join("' '")
        );
        let path = home.join("wrapper");
        std::fs::write(&path, wrapper).expect("the home can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("it can be made executable");
        config.command = Some(vec![path.to_string_lossy().into_owned()]);
    };
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("just do it"), ScriptedAnswer::say("Done."))
        .when_once(|request| request.prompt_contains("paint"), question_answer("Which colour?"));
    let Some(daemon) = ProgramTestDaemon::with_config("codex", script, hide) else { return };
    let run = daemon.start(Auto, "just do it");
    let done = daemon.wait_for_status(run, RunStatus::Succeeded);
    assert_eq!(done.profile.map(|profile| profile.kind), Some(ProfileKind::StickyProcess));
    let run = daemon.start(Interactive, "paint");
    let failed = daemon.wait_for_status(run, RunStatus::Failed);
    assert_eq!(failed.error().map(|failure| failure.code), Some(FailureCode::InteractionProcessLost));
    assert_eq!(daemon.open_questions(), 0);
}

/// The names of these programs' shell tools.
const SHELL_TOOLS: [&str; 6] =
    ["exec_command", "shell_command", "Bash", "bash", "run_shell_command", "shell"];

/// The sandbox of the first turn is effective in the second (A4). Without it the same call succeeds.
fn the_sandbox_holds_on_the_second_turn(engine: &str) {
    let script = ModelScript::new()
        .when(|request| request.prompt_contains("look"), ScriptedAnswer::say("I have looked."))
        .when(
            |request| request.prompt_contains("touch"),
            ScriptedAnswer::shell("touch touched.txt; echo tried"),
        )
        .when(|request| !request.new_tool_results().is_empty(), ScriptedAnswer::say("I have tried."));
    let Some(daemon) = ProgramTestDaemon::new(engine, script) else { return };
    let run = daemon.start_with(Chat, "look", |settings| settings.sandbox = Some("read-only".to_owned()));
    daemon.wait_for_status(run, RunStatus::Idle);
    daemon.send_message(run, "touch");
    let settled = [RunStatus::Idle, RunStatus::WaitingUser];
    let after = daemon
        .wait_until(run, "an end of turn 2", |run| settled.contains(&run.status()) && run.turn_index == 2);
    assert!(!daemon.workspace.join("touched.txt").exists(), "nothing was written on turn 2");
    if after.status() == RunStatus::WaitingUser {
        assert!(matches!(daemon.question(run).origin, InteractionOrigin::Gate { .. }), "the call was tried");
        daemon.reply(run, "no");
        daemon.wait_for_status(run, RunStatus::Idle);
        assert!(!daemon.workspace.join("touched.txt").exists(), "nothing was written after a no");
    } else {
        // Some programs do not offer a shell to their model in this sandbox.
        let request = daemon.model.turns().into_iter().find(|request| request.prompt_contains("touch"));
        let offered =
            SHELL_TOOLS.iter().any(|tool| request.as_ref().is_some_and(|request| request.offers(tool)));
        let tried = daemon.model.turns().iter().any(|request| !request.new_tool_results().is_empty());
        assert_eq!(
            tried, offered,
            "a call that is possible was tried, and the model heard what became of it"
        );
    }
    let wide = daemon.start_with(Chat, "look", |settings| {
        settings.sandbox = Some("danger-full-access".to_owned());
    });
    daemon.wait_for_status(wide, RunStatus::Idle);
    daemon.send_message(wide, "touch");
    daemon.wait_until(wide, "turn 2", |run| run.status() == RunStatus::Idle && run.turn_index == 2);
    assert!(daemon.workspace.join("touched.txt").exists(), "the same call works without the sandbox");
}

#[test]
fn codex_is_as_narrow_on_the_second_turn() {
    the_sandbox_holds_on_the_second_turn("codex");
}

#[test]
fn claude_is_as_narrow_on_the_second_turn() {
    the_sandbox_holds_on_the_second_turn("claude");
}

#[test]
fn gemini_is_as_narrow_on_the_second_turn() {
    the_sandbox_holds_on_the_second_turn("gemini");
}

#[test]
fn qwen_is_as_narrow_on_the_second_turn() {
    the_sandbox_holds_on_the_second_turn("qwen");
}

#[test]
fn opencode_is_as_narrow_on_the_second_turn() {
    the_sandbox_holds_on_the_second_turn("opencode");
}

/// Settings with which Claude Code runs commands only in its own sandbox (bubblewrap and socat).
const CLAUDE_SANDBOX: &str = r#"{"sandbox":{"enabled":true,"failIfUnavailable":true,"autoAllowBashIfSandboxed":true,
    "allowUnsandboxedCommands":false}}"#;

/// Prints the result of each attempt.
const SANDBOX_SCRIPT: &str = "echo made > made.txt && echo workspace-written; \
    touch ../outside.txt || echo outside-refused; \
    cat ../keepers/token || echo keepers-hidden; \
    grep -c : /proc/net/dev | sed s/^/interfaces-/";

/// The sandbox of Claude Code creates namespaces inside the one that hides Abide's files (issue "Trust boundary",
/// Isolation). In auto mode there are no questions, so a command runs only because it is sandboxed.
#[test]
fn the_sandbox_of_claude_works_inside_the_isolation() {
    let folders = ["/usr/local/bin", "/usr/bin", "/bin"].map(Path::new);
    for program in ["bwrap", "socat"] {
        if !folders.iter().any(|folder| folder.join(program).exists()) {
            return skip(&format!("the sandbox of Claude Code needs {program}, which is not installed"));
        }
    }
    let script = ModelScript::new()
        .when(|request| request.prompt_contains("try"), ScriptedAnswer::shell(SANDBOX_SCRIPT))
        .when(|request| !request.new_tool_results().is_empty(), ScriptedAnswer::say("I have tried."));
    let sandboxed = |config: &mut EngineConfig, home: &Path| {
        let folder = config.env.get("CLAUDE_CONFIG_DIR").map_or(home, Path::new);
        std::fs::write(folder.join("settings.json"), CLAUDE_SANDBOX).expect("the home can be written");
        std::fs::create_dir(home.join("keepers")).expect("the home can be written");
        std::fs::write(home.join("keepers/token"), "SECRET").expect("the home can be written");
    };
    let Some(daemon) = ProgramTestDaemon::with_config("claude", script, sandboxed) else { return };
    let run = daemon.start(Auto, "try");
    daemon.wait_for_status(run, RunStatus::Succeeded);
    let results: Vec<String> = daemon
        .model
        .turns()
        .iter()
        .flat_map(|request| request.new_tool_results())
        .map(|result| result.text)
        .collect();
    let result = results.concat();
    for expected in ["workspace-written", "outside-refused", "keepers-hidden", "interfaces-1"] {
        assert!(result.contains(expected), "{expected}: {results:#?}");
    }
    assert!(!result.contains("SECRET"), "{results:#?}");
    assert_eq!(std::fs::read_to_string(daemon.workspace.join("made.txt")).ok().as_deref(), Some("made\n"));
    assert!(!daemon.home.path().join("outside.txt").exists());
}

/// Codex over ACP reports a successful resume of a session whose file is gone, and fails at the first prompt.
#[test]
fn a11_codex_over_acp_reports_a_session_whose_file_is_gone() {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("paint"), question_answer("Which colour?"));
    let Some(daemon) = ProgramTestDaemon::new("codex-acp", script) else { return };
    let run = daemon.start(Interactive, "paint the shed");
    let waiting = daemon.wait_for_status(run, RunStatus::WaitingUser);
    let id = waiting.handle.expect("the handle is known").handle_value;
    let removed = remove_named(&daemon.home.path().join("codex/sessions"), &id);
    assert_eq!(removed, 1, "the session has one file");
    daemon.reply(run, "red");
    let failed = daemon.wait_for_status(run, RunStatus::Failed);
    let failure = failed.error().expect("it says why").clone();
    assert_eq!(failure.code, FailureCode::SessionResumeFailed, "{}", failure.message);
    assert_eq!(daemon.open_questions(), 0);
}

/// Removes all files with `part` in their name and returns their number.
fn remove_named(folder: &std::path::Path, part: &str) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                return remove_named(&path, part);
            }
            let named = entry.file_name().to_string_lossy().contains(part);
            usize::from(named && std::fs::remove_file(&path).is_ok())
        })
        .sum()
}

/// Gemini deletes sessions that were resumed in a later minute when another session starts in the same folder. Sessions
/// of Abide must not be affected.
#[test]
fn gemini_does_not_lose_a_session_that_was_resumed_later() {
    let Some(daemon) = ProgramTestDaemon::new("gemini", ModelScript::new()) else { return };
    let run = daemon.start(Chat, "stone 1 of the wall");
    daemon.wait_for_status(run, RunStatus::Idle);
    daemon.wait_for_next_minute();
    daemon.send_message(run, "stone 2 of the wall");
    daemon.wait_until(run, "turn 2", |run| run.status() == RunStatus::Idle && run.turn_index == 2);
    for number in 0..2 {
        // The start of another session triggers the deletion.
        let other = daemon.start(Interactive, &format!("something else {number}"));
        daemon.wait_for_status(other, RunStatus::Succeeded);
    }
    daemon.send_message(run, "stone 3 of the wall");
    daemon.wait_until(run, "turn 3", |run| run.status() == RunStatus::Idle && run.turn_index == 3);
    let request = daemon.model.turns();
    let last = request.last().expect("the model was asked");
    let stones = last.user_texts().iter().filter(|text| text.contains("of the wall")).count();
    assert_eq!(stones, 3, "{:?}", last.user_texts());
}

/// The request of a process that dies is void, and the person is asked whether to continue in the same session (A10).
#[test]
fn a10_the_request_of_a_process_that_dies_is_void() {
    let script = ModelScript::new()
        .when_once(|request| request.prompt_contains("write"), ScriptedAnswer::shell("echo done > yes.txt"));
    let Some(daemon) = ProgramTestDaemon::new("claude", script) else { return };
    let run = daemon.start(Interactive, "write");
    let waiting = daemon.wait_until(run, "a request", |run| run.status() == RunStatus::WaitingUser);
    kill(waiting.live().expect("it waits").process.pid, rustix::process::Signal::KILL);
    let asks = |run: &Run| {
        let void = InteractionOrigin::Abide(RuntimeQuestion::RequestVoid);
        run.interactions.iter().any(|question| question.is_open() && question.origin == void)
    };
    let waiting = daemon.wait_until(run, "a void request", asks);
    assert!(waiting.live().is_none() && waiting.handle.is_some(), "{waiting:?}");
    assert_eq!(daemon.open_questions(), 1);
}
