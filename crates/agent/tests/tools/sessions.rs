//! Shells that run across calls.

use abide_agent::definition::{ParameterInjection, ToolDefinition};
use abide_agent::tool::{ToolSessionChange, ToolStatus};
use abide_testkit::wait;
use serde_json::json;

use crate::fixture::{
    WorkbenchFixture, is_installed, on_terminal, parameter, parent_pid, pids_running, stateful_tool, tool,
};

fn id_of(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("Session started with session_id: ").expect("a session was started").to_owned()
}

#[test]
fn the_first_call_starts_the_default_session_and_later_calls_use_it() {
    for shell in ["sh", "bash", "dash", "zsh"].into_iter().filter(|shell| is_installed(shell)) {
        let mut fixture = WorkbenchFixture::new();
        let tool = stateful_tool("shell", &[shell, "-i"]);
        let result = fixture.call(&tool, json!({"text": "cd / && x=7; pwd"}));
        let id = id_of(&result.text);
        assert!(id.starts_with("shell_") && id.len() == 12, "{id}");
        assert_eq!(
            result.text,
            format!("Session started with session_id: {id}\n/\n[exit code 0]"),
            "{shell}"
        );
        assert_eq!((result.session_event, result.exit_code), (Some(ToolSessionChange::Started), Some(0)));
        let result = fixture.call(&tool, json!({"text": "echo $x; echo no >&2; (exit 4)"}));
        assert_eq!(result.text, "7\n[stderr]\nno\n[exit code 4]", "{shell}");
        assert_eq!((result.session_id.as_deref(), result.session_event), (Some(id.as_str()), None));
        assert_eq!((result.exit_code, result.status), (Some(4), ToolStatus::Error));
        assert_eq!(fixture.read_call_file("stdout"), b"7\n");
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", fixture.pid(&id))).unwrap();
        assert!(fixture.workbench.is_alive(&id) && !comm.is_empty());
    }
}

#[test]
fn a_call_without_text_starts_a_session_and_reports_it() {
    let mut fixture = WorkbenchFixture::new();
    // A definition may declare the session id itself.
    let mut tool = stateful_tool("shell", &["bash", "-i"]);
    tool.parameters.push(parameter("session_id", ParameterInjection::Option));
    let id = id_of(&fixture.call(&tool, json!({})).text);
    let result = fixture.call(&tool, json!({"session_id": id, "text": "echo $BASH_VERSION | wc -l"}));
    assert_eq!(result.text, "1\n[exit code 0]");
    let result = fixture.call(&tool, json!({}));
    assert!(result.text.contains("waits for a command") && result.session_event.is_none(), "{}", result.text);
}

#[test]
fn sessions_beside_each_other_have_their_own_state() {
    let mut fixture = WorkbenchFixture::new();
    let tool = stateful_tool("shell", &["bash"]);
    let one = id_of(&fixture.call(&tool, json!({"text": "x=1"})).text);
    let other = id_of(&fixture.call(&tool, json!({"session_id": "new", "text": "x=2"})).text);
    assert_ne!(one, other);
    for (arguments, expected) in [
        (json!({"text": "echo $x", "session_id": one}), "1\n[exit code 0]"),
        (json!({"text": "echo $x", "session_id": other}), "2\n[exit code 0]"),
        (json!({"text": "echo $x"}), "1\n[exit code 0]"),
    ] {
        assert_eq!(fixture.call(&tool, arguments).text, expected);
    }
    let result = fixture.call(&tool, json!({"text": "echo", "session_id": "shell_nosuch"}));
    assert!(
        result.text.contains(&one) && result.text.contains(&other) && result.status == ToolStatus::Error,
        "{}",
        result.text
    );
    let result = fixture.call(&stateful_tool("other", &["bash"]), json!({"text": "echo", "session_id": one}));
    assert!(result.text.contains("\"other\" has no session"), "{}", result.text);
    let hostile = fixture.call(&tool, json!({"text": "echo", "session_id": "../../etc"}));
    assert!(hostile.text.contains("has no session"), "{}", hostile.text);
}

#[test]
fn a_session_is_ended_with_everything_in_it_and_no_zombie_is_left() {
    let mut fixture = WorkbenchFixture::new();
    let tool = stateful_tool("shell", &["bash"]);
    let id = id_of(&fixture.call(&tool, json!({"text": "setsid sleep 71911 & sleep 71912 &"})).text);
    wait::until("both children run", || {
        !pids_running("sleep 71911").is_empty() && !pids_running("sleep 71912").is_empty()
    });
    let keeper = parent_pid(fixture.pid(&id));
    let result = fixture.workbench.end_session(&id);
    assert_eq!(
        (result.text, result.session_event),
        (format!("Session {id} terminated."), Some(ToolSessionChange::Ended))
    );
    assert!(pids_running("sleep 71911").is_empty() && pids_running("sleep 71912").is_empty());
    assert!(!fixture.state().join("sessions").join(&id).exists());
    assert!(!std::path::Path::new(&format!("/proc/{keeper}")).exists(), "its keeper was not reaped");
    assert!(fixture.workbench.end_session(&id).text.contains("open sessions: none"));
    assert_ne!(id_of(&fixture.call(&tool, json!({"text": "true"})).text), id);
}

#[test]
fn a_timed_out_command_is_stopped_and_the_session_stays() {
    let mut fixture = WorkbenchFixture::new();
    let tool = ToolDefinition { timeout_sec: Some(1), ..stateful_tool("shell", &["bash"]) };
    fixture.call(&tool, json!({"text": "kept=1"}));
    let result = fixture.call(&tool, json!({"text": "echo begun; while :; do :; done"}));
    assert!(result.timed_out && result.text.starts_with("begun\n[stopped because"), "{}", result.text);
    assert_eq!(fixture.call(&tool, json!({"text": "echo $kept"})).text, "1\n[exit code 0]");
}

#[test]
fn a_shell_that_ignores_a_stop_is_replaced_and_reported() {
    let mut fixture = WorkbenchFixture::new();
    let tool = ToolDefinition { timeout_sec: Some(1), ..stateful_tool("shell", &["bash"]) };
    fixture.call(&tool, json!({"text": "kept=1; cd /usr"}));
    let result = fixture.call(&tool, json!({"text": "trap '' URG; sleep 71914"}));
    assert!(
        result.timed_out && result.text.contains("was replaced by a new one in the same directory"),
        "{}",
        result.text
    );
    assert_eq!(fixture.call(&tool, json!({"text": "echo \"<$kept> $PWD\""})).text, "<> /usr\n[exit code 0]");
}

#[test]
fn a_shell_that_exits_ends_its_session_and_the_next_call_starts_another() {
    let mut fixture = WorkbenchFixture::new();
    let tool = stateful_tool("shell", &["bash"]);
    let id = id_of(&fixture.call(&tool, json!({"text": "true"})).text);
    let result = fixture.call(&tool, json!({"text": "echo bye; exit 5"}));
    assert_eq!(result.text, format!("bye\n[exit code 5]\n[session {id} has ended; exit code 5]"));
    assert_eq!(result.session_event, Some(ToolSessionChange::Ended));
    assert_ne!(id_of(&fixture.call(&tool, json!({"text": "true"})).text), id);
}

#[test]
fn cases_that_wedge_persistent_shells_do_not_wedge_the_session() {
    for shell in ["bash", "dash", "zsh"].into_iter().filter(|shell| is_installed(shell)) {
        let mut fixture = WorkbenchFixture::new();
        let tool = ToolDefinition { timeout_sec: Some(20), ..stateful_tool("shell", &[shell]) };
        // A POSIX shell can only exit at such an error, and reports it; the others continue.
        let errexit = if shell == "dash" { "set -u; echo $nothing" } else { "set -e; false" };
        for hostile in [
            errexit,
            "echo 'never closed",
            "cat <<EOF\nnever closed",
            "printf 'no newline'",
            "cat",
            "sleep 71913 &",
        ] {
            fixture.call(&tool, json!({"text": hostile}));
            assert_eq!(
                fixture.call(&tool, json!({"text": "echo alive"})).text,
                "alive\n[exit code 0]",
                "{shell}: {hostile}"
            );
        }
    }
}

#[test]
fn a_gigabyte_of_session_output_is_truncated() {
    let mut fixture = WorkbenchFixture::new();
    let tool = stateful_tool("shell", &["bash"]);
    let result = fixture.call(&tool, json!({"text": "head -c 1000000000 /dev/zero | tr '\\0' y; echo last"}));
    assert!(result.text.len() < 17 << 10 && result.text.ends_with("last\n[exit code 0]"));
    assert_eq!(fixture.call(&tool, json!({"text": "echo alive"})).text, "alive\n[exit code 0]");
}

#[test]
fn input_to_a_shell_on_a_terminal_reaches_its_programs() {
    for shell in ["bash", "dash", "zsh"].into_iter().filter(|shell| is_installed(shell)) {
        let mut fixture = WorkbenchFixture::new();
        let mut tool = on_terminal(stateful_tool("shell", &[shell]));
        if shell == "zsh" {
            tool.command.push("-f".to_owned());
        }
        tool.env.insert("PS1".to_owned(), "ready> ".to_owned());
        fixture.call(&tool, json!({}));
        let result =
            fixture.call(&tool, json!({"text": "tty >/dev/null && sleep 1 && printf '\\033[9;3Hhere\\n'"}));
        assert!(result.text.contains("\n  here\n"), "{shell}: {}", result.text);
        assert!(
            result.text.contains("[screen of 24 rows and 80 columns, cursor in row 10,"),
            "{shell}: {}",
            result.text
        );
        fixture.call(&tool, json!({"text": "python3 -q"}));
        let result = fixture.call(&tool, json!({"text": "print(6 * 7)"}));
        assert!(result.text.contains("\n42\n>>>"), "{shell}: {}", result.text);
        fixture.call(&tool, json!({"text": "exit()"}));
        let result = fixture.call(&tool, json!({"text": "exit 3"}));
        assert!(result.text.contains("has ended; exit code 3]"), "{shell}: {}", result.text);
    }
}

/// SECURITY 10: the keeper enforces the timeout, and a command can stop it.
#[test]
fn a_command_that_stops_its_keeper_ends_and_the_session_continues() {
    for shell in ["sh", "bash", "zsh"].into_iter().filter(|shell| is_installed(shell)) {
        let mut fixture = WorkbenchFixture::new();
        let tool = stateful_tool("shell", &[shell]);
        fixture.call(&tool, json!({"text": "x=7"}));
        let result = fixture.call(&tool, json!({"text": "kill -STOP $PPID; echo stopped"}));
        assert_eq!(result.text, "stopped\n[exit code 0]", "{shell}");
        assert_eq!(fixture.call(&tool, json!({"text": "echo $x"})).text, "7\n[exit code 0]", "{shell}");
    }
}

#[test]
fn a_failed_session_start_is_reported_and_leaves_nothing() {
    let mut fixture = WorkbenchFixture::new();
    let result = fixture.call(&stateful_tool("s", &["no-such-program-here"]), json!({"text": "x"}));
    assert!(result.text.contains("there is no program \"no-such-program-here\""), "{}", result.text);
    assert_eq!((result.session_event, result.session_id), (None, None));
    let ssh = ToolDefinition {
        parameters: vec![parameter("host", ParameterInjection::Argument)],
        ..stateful_tool("remote", &["cat"])
    };
    let result = fixture.call(&ssh, json!({}));
    assert!(
        result.text.contains("to start a session, missing required parameter \"host\""),
        "{}",
        result.text
    );
    assert_eq!(fixture.workbench.sessions(), []);
    assert_eq!(fixture.call(&tool("t", &["true"]), json!({})).text, "(no output)\n[exit code 0]");
}
