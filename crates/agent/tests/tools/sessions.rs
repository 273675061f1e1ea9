//! Shells that run across calls.

use abide_agent::definition::{ParameterInjection, ToolDefinition};
use abide_agent::tool::{ToolSessionChange, ToolStatus};
use abide_testkit::wait;
use serde_json::json;

use crate::bench::{WorkbenchFixture, is_there, on_terminal, parameter, parent, running, session, tool};

fn id_of(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("Session started with session_id: ").expect("a session was started").to_owned()
}

#[test]
fn the_first_call_starts_the_default_session_and_the_next_go_on_in_it() {
    for shell in ["sh", "bash", "dash", "zsh"].into_iter().filter(|shell| is_there(shell)) {
        let mut bench = WorkbenchFixture::new();
        let tool = session("shell", &[shell, "-i"]);
        let seen = bench.call(&tool, json!({"text": "cd / && x=7; pwd"}));
        let id = id_of(&seen.text);
        assert!(id.starts_with("shell_") && id.len() == 12, "{id}");
        assert_eq!(seen.text, format!("Session started with session_id: {id}\n/\n[exit code 0]"), "{shell}");
        assert_eq!((seen.session_event, seen.exit_code), (Some(ToolSessionChange::Started), Some(0)));
        let seen = bench.call(&tool, json!({"text": "echo $x; echo no >&2; (exit 4)"}));
        assert_eq!(seen.text, "7\n[stderr]\nno\n[exit code 4]", "{shell}");
        assert_eq!((seen.session_id.as_deref(), seen.session_event), (Some(id.as_str()), None));
        assert_eq!((seen.exit_code, seen.status), (Some(4), ToolStatus::Error));
        assert_eq!(bench.written("stdout"), b"7\n");
        let comm = std::fs::read_to_string(format!("/proc/{}/comm", bench.pid(&id))).unwrap();
        assert!(bench.workbench.is_alive(&id) && !comm.is_empty());
    }
}

#[test]
fn a_call_without_text_starts_a_session_and_says_so() {
    let mut bench = WorkbenchFixture::new();
    // A definition may declare the session id itself.
    let mut tool = session("shell", &["bash", "-i"]);
    tool.parameters.push(parameter("session_id", ParameterInjection::Option));
    let id = id_of(&bench.call(&tool, json!({})).text);
    let seen = bench.call(&tool, json!({"session_id": id, "text": "echo $BASH_VERSION | wc -l"}));
    assert_eq!(seen.text, "1\n[exit code 0]");
    let seen = bench.call(&tool, json!({}));
    assert!(seen.text.contains("waits for a command") && seen.session_event.is_none(), "{}", seen.text);
}

#[test]
fn sessions_beside_each_other_have_their_own_state() {
    let mut bench = WorkbenchFixture::new();
    let tool = session("shell", &["bash"]);
    let one = id_of(&bench.call(&tool, json!({"text": "x=1"})).text);
    let other = id_of(&bench.call(&tool, json!({"session_id": "new", "text": "x=2"})).text);
    assert_ne!(one, other);
    for (arguments, expected) in [
        (json!({"text": "echo $x", "session_id": one}), "1\n[exit code 0]"),
        (json!({"text": "echo $x", "session_id": other}), "2\n[exit code 0]"),
        (json!({"text": "echo $x"}), "1\n[exit code 0]"),
    ] {
        assert_eq!(bench.call(&tool, arguments).text, expected);
    }
    let seen = bench.call(&tool, json!({"text": "echo", "session_id": "shell_nosuch"}));
    assert!(
        seen.text.contains(&one) && seen.text.contains(&other) && seen.status == ToolStatus::Error,
        "{}",
        seen.text
    );
    let seen = bench.call(&session("other", &["bash"]), json!({"text": "echo", "session_id": one}));
    assert!(seen.text.contains("\"other\" has no session"), "{}", seen.text);
    let hostile = bench.call(&tool, json!({"text": "echo", "session_id": "../../etc"}));
    assert!(hostile.text.contains("has no session"), "{}", hostile.text);
}

#[test]
fn a_session_is_ended_with_everything_in_it_and_no_zombie_is_left() {
    let mut bench = WorkbenchFixture::new();
    let tool = session("shell", &["bash"]);
    let id = id_of(&bench.call(&tool, json!({"text": "setsid sleep 71911 & sleep 71912 &"})).text);
    wait::until("both children run", || {
        !running("sleep 71911").is_empty() && !running("sleep 71912").is_empty()
    });
    let keeper = parent(bench.pid(&id));
    let seen = bench.workbench.end_session(&id);
    assert_eq!(
        (seen.text, seen.session_event),
        (format!("Session {id} terminated."), Some(ToolSessionChange::Ended))
    );
    assert!(running("sleep 71911").is_empty() && running("sleep 71912").is_empty());
    assert!(!bench.state().join("sessions").join(&id).exists());
    assert!(!std::path::Path::new(&format!("/proc/{keeper}")).exists(), "its keeper was not reaped");
    assert!(bench.workbench.end_session(&id).text.contains("open sessions: none"));
    assert_ne!(id_of(&bench.call(&tool, json!({"text": "true"})).text), id);
}

#[test]
fn a_command_whose_time_is_over_is_stopped_and_the_session_stays() {
    let mut bench = WorkbenchFixture::new();
    let tool = ToolDefinition { timeout_sec: Some(1), ..session("shell", &["bash"]) };
    bench.call(&tool, json!({"text": "kept=1"}));
    let seen = bench.call(&tool, json!({"text": "echo begun; while :; do :; done"}));
    assert!(seen.timed_out && seen.text.starts_with("begun\n[stopped because"), "{}", seen.text);
    assert_eq!(bench.call(&tool, json!({"text": "echo $kept"})).text, "1\n[exit code 0]");
}

#[test]
fn a_shell_that_ignores_a_stop_is_replaced_and_the_model_is_told() {
    let mut bench = WorkbenchFixture::new();
    let tool = ToolDefinition { timeout_sec: Some(1), ..session("shell", &["bash"]) };
    bench.call(&tool, json!({"text": "kept=1; cd /usr"}));
    let seen = bench.call(&tool, json!({"text": "trap '' URG; sleep 71914"}));
    assert!(
        seen.timed_out && seen.text.contains("was replaced by a new one in the same directory"),
        "{}",
        seen.text
    );
    assert_eq!(bench.call(&tool, json!({"text": "echo \"<$kept> $PWD\""})).text, "<> /usr\n[exit code 0]");
}

#[test]
fn a_shell_that_exits_ends_its_session_and_the_next_call_starts_another() {
    let mut bench = WorkbenchFixture::new();
    let tool = session("shell", &["bash"]);
    let id = id_of(&bench.call(&tool, json!({"text": "true"})).text);
    let seen = bench.call(&tool, json!({"text": "echo bye; exit 5"}));
    assert_eq!(seen.text, format!("bye\n[exit code 5]\n[session {id} has ended; exit code 5]"));
    assert_eq!(seen.session_event, Some(ToolSessionChange::Ended));
    assert_ne!(id_of(&bench.call(&tool, json!({"text": "true"})).text), id);
}

#[test]
fn what_wedges_other_persistent_shells_does_not_wedge_these() {
    for shell in ["bash", "dash", "zsh"].into_iter().filter(|shell| is_there(shell)) {
        let mut bench = WorkbenchFixture::new();
        let tool = ToolDefinition { timeout_sec: Some(20), ..session("shell", &[shell]) };
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
            bench.call(&tool, json!({"text": hostile}));
            assert_eq!(
                bench.call(&tool, json!({"text": "echo alive"})).text,
                "alive\n[exit code 0]",
                "{shell}: {hostile}"
            );
        }
    }
}

#[test]
fn a_gigabyte_in_a_session_is_survived_too() {
    let mut bench = WorkbenchFixture::new();
    let tool = session("shell", &["bash"]);
    let seen = bench.call(&tool, json!({"text": "head -c 1000000000 /dev/zero | tr '\\0' y; echo last"}));
    assert!(seen.text.len() < 17 << 10 && seen.text.ends_with("last\n[exit code 0]"));
    assert_eq!(bench.call(&tool, json!({"text": "echo alive"})).text, "alive\n[exit code 0]");
}

#[test]
fn a_shell_on_a_terminal_is_typed_into_with_whatever_it_starts() {
    for shell in ["bash", "dash", "zsh"].into_iter().filter(|shell| is_there(shell)) {
        let mut bench = WorkbenchFixture::new();
        let mut tool = on_terminal(session("shell", &[shell]));
        if shell == "zsh" {
            tool.command.push("-f".to_owned());
        }
        tool.env.insert("PS1".to_owned(), "ready> ".to_owned());
        bench.call(&tool, json!({}));
        let seen =
            bench.call(&tool, json!({"text": "tty >/dev/null && sleep 1 && printf '\\033[9;3Hhere\\n'"}));
        assert!(seen.text.contains("\n  here\n"), "{shell}: {}", seen.text);
        assert!(
            seen.text.contains("[screen of 24 rows and 80 columns, cursor in row 10,"),
            "{shell}: {}",
            seen.text
        );
        bench.call(&tool, json!({"text": "python3 -q"}));
        let seen = bench.call(&tool, json!({"text": "print(6 * 7)"}));
        assert!(seen.text.contains("\n42\n>>>"), "{shell}: {}", seen.text);
        bench.call(&tool, json!({"text": "exit()"}));
        let seen = bench.call(&tool, json!({"text": "exit 3"}));
        assert!(seen.text.contains("has ended; exit code 3]"), "{shell}: {}", seen.text);
    }
}

#[test]
fn a_session_that_cannot_be_started_is_told_and_leaves_nothing() {
    let mut bench = WorkbenchFixture::new();
    let seen = bench.call(&session("s", &["no-such-program-here"]), json!({"text": "x"}));
    assert!(seen.text.contains("there is no program \"no-such-program-here\""), "{}", seen.text);
    assert_eq!((seen.session_event, seen.session_id), (None, None));
    let ssh = ToolDefinition {
        parameters: vec![parameter("host", ParameterInjection::Argument)],
        ..session("remote", &["cat"])
    };
    let seen = bench.call(&ssh, json!({}));
    assert!(seen.text.contains("to start a session, missing required parameter \"host\""), "{}", seen.text);
    assert_eq!(bench.workbench.sessions(), []);
    assert_eq!(bench.call(&tool("t", &["true"]), json!({})).text, "(no output)\n[exit code 0]");
}
