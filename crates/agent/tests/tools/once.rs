//! Programs that run for one call.

use abide_agent::definition::{ParameterInjection, ToolDefinition};
use abide_agent::tool::ToolStatus;
use abide_testkit::wait;
use serde_json::json;

use crate::fixture::{WorkbenchFixture, on_terminal, parameter, pids_running, start_agent_process, tool};

/// A tool that runs a shell script.
fn script(text: &str) -> ToolDefinition {
    tool("script", &["sh", "-c", text])
}

#[test]
fn output_is_returned_and_the_call_is_recorded() {
    let mut fixture = WorkbenchFixture::new();
    let greet = ToolDefinition {
        parameters: vec![
            parameter("who", ParameterInjection::Argument),
            parameter("text", ParameterInjection::Stdin),
        ],
        ..tool("greet", &["sh", "-c", "echo \"hello $1\"; cat; echo oops >&2; exit 3", "greet"])
    };
    let result = fixture.call(&greet, json!({"who": "you; rm x", "text": "from stdin\n"}));
    assert_eq!(result.text, "hello you; rm x\nfrom stdin\n[stderr]\noops\n[exit code 3]");
    assert_eq!((result.exit_code, result.status, result.timed_out), (Some(3), ToolStatus::Error, false));
    assert_eq!(result.execution_ref.as_deref(), Some("executions/act_1"));
    assert_eq!(fixture.read_call_file("stdout"), b"hello you; rm x\nfrom stdin\n");
    assert_eq!(fixture.read_call_file("stderr"), b"oops\n");
    let call: serde_json::Value = serde_json::from_slice(&fixture.read_call_file("call.json")).unwrap();
    assert_eq!((&call["tool"], &call["stdin_bytes"]), (&json!("greet"), &json!(11)));
    let exit: serde_json::Value = serde_json::from_slice(&fixture.read_call_file("exit.json")).unwrap();
    assert_eq!((&exit["exit_code"], &exit["printed"]), (&json!(3), &json!([27, 5])));
    assert!(!fixture.folder.path().join("record/calls/act_1/held").exists(), "nothing of the keeper is left");
}

#[test]
fn a_tool_without_input_reads_end_of_file() {
    let result = WorkbenchFixture::new().call(&script("cat; echo done"), json!({}));
    assert_eq!(result.text, "done\n[exit code 0]");
}

#[test]
fn a_missing_program_or_directory_is_reported_to_the_model() {
    let mut fixture = WorkbenchFixture::new();
    let result = fixture.call(&tool("t", &["no-such-program-here"]), json!({}));
    assert_eq!(
        result.text,
        "the tool could not be started: there is no program \"no-such-program-here\": it is not installed, or not in PATH"
    );
    assert_eq!((result.status, result.exit_code), (ToolStatus::Error, None));
    let result = fixture.call(&tool("t", &["./not-here.sh"]), json!({}));
    assert!(result.text.contains("there is no program \"./not-here.sh\""), "{}", result.text);
    let result =
        fixture.call(&ToolDefinition { cwd: Some("gone".to_owned()), ..tool("t", &["true"]) }, json!({}));
    assert!(result.text.contains("there is no directory"), "{}", result.text);
}

#[test]
fn a_timeout_ends_the_tool_with_its_descendants_and_keeps_the_output() {
    let mut fixture = WorkbenchFixture::new();
    let slow =
        ToolDefinition { timeout_sec: Some(1), ..script("echo begun; setsid sleep 71901 & sleep 71902") };
    let result = fixture.call(&slow, json!({}));
    assert_eq!((result.timed_out, result.status), (true, ToolStatus::TimedOut));
    assert!(result.text.starts_with("begun\n[stopped because it took longer than 1 s"), "{}", result.text);
    assert!(pids_running("sleep 71901").is_empty() && pids_running("sleep 71902").is_empty());
}

#[test]
fn a_tool_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let mut fixture = WorkbenchFixture::new();
    let deaf = ToolDefinition {
        timeout_sec: Some(1),
        ..script("trap '' TERM HUP; echo deaf; while :; do sleep 0.2; done")
    };
    let result = fixture.call(&deaf, json!({}));
    assert_eq!((result.timed_out, result.exit_code), (true, Some(137)));
    assert!(result.text.starts_with("deaf\n"), "{}", result.text);
}

#[test]
fn a_child_with_open_pipes_neither_delays_nor_survives_the_call() {
    let mut fixture = WorkbenchFixture::new();
    let leaving = script("setsid sleep 71903 & (sleep 71904 &) ; echo left");
    let result = fixture.call(&leaving, json!({}));
    assert_eq!(result.text, "left\n[exit code 0]");
    assert!(pids_running("sleep 71903").is_empty() && pids_running("sleep 71904").is_empty());
}

#[test]
fn a_gigabyte_of_output_is_truncated_with_a_path() {
    let mut fixture = WorkbenchFixture::new();
    let loud = script("echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last");
    let before = resident();
    let result = fixture.call(&loud, json!({}));
    // Other tests of this process run concurrently. A quarter of the printed amount is far below all of it.
    assert!(resident() < before + (256 << 10), "memory grew from {before} to {} KiB", resident());
    assert_eq!(result.exit_code, Some(0));
    assert!(result.text.len() < 17 << 10, "{} bytes are shown", result.text.len());
    let is_whole = result.text.starts_with("first\nxxx") && result.text.ends_with("xxx\nlast\n[exit code 0]");
    assert!(is_whole, "{}", result.text.replace("xxx", ""));
    let omission = "the first 268435456 bytes are in .abide/executions/act_1/stdout, the last in .abide/executions/act_1/stdout.tail";
    assert!(result.text.contains(omission), "{}", result.text.replace('x', ""));
    assert_eq!(fixture.read_call_file("stdout").len(), 256 << 20);
    assert!(fixture.read_call_file("stdout.tail").ends_with(b"x\nlast\n"));
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("memory is told");
    line.trim().trim_end_matches(" kB").parse().expect("it is a number")
}

#[test]
fn binary_output_is_reported_as_binary() {
    let result = WorkbenchFixture::new().call(&script("head -c 4096 /dev/urandom; printf '\\0'"), json!({}));
    assert_eq!(
        result.text,
        "[binary output, 4097 bytes; everything is in .abide/executions/act_1/stdout]\n[exit code 0]"
    );
}

#[test]
fn a_tool_on_a_terminal_has_one_and_shows_its_screen() {
    let result =
        WorkbenchFixture::new().call(&on_terminal(script("test -t 1 && printf 'a\\033[2;5Hb'")), json!({}));
    assert_eq!(result.text, "a\n    b\n[exit code 0]");
}

#[test]
fn a_tool_is_ended_when_the_agent_is_stopped() {
    let mut fixture = WorkbenchFixture::new();
    let stop = fixture.workbench.setup_mut().stop_flag.clone();
    let marker = fixture.folder.path().join("begun");
    let waiting = script("echo here; touch begun; sleep 71905");
    let watcher = std::thread::spawn(move || {
        wait::until("the command has begun", || marker.exists());
        stop.0.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let result = fixture.call(&waiting, json!({}));
    watcher.join().unwrap();
    assert!(result.interrupted && result.text.starts_with("here\n[interrupted"), "{}", result.text);
    assert!(pids_running("sleep 71905").is_empty());
}

#[test]
fn a_call_of_a_dead_agent_is_ended_and_its_output_kept() {
    let mut fixture = WorkbenchFixture::new();
    std::fs::write(fixture.folder.path().join("once"), "").unwrap();
    let mut agent = start_agent_process(fixture.folder.path());
    agent.kill().unwrap();
    agent.wait().unwrap();
    let recovered_call = fixture.workbench.recover("act_9").unwrap();
    assert!(recovered_call.was_started && recovered_call.was_running, "{recovered_call:?}");
    assert_eq!((recovered_call.output.as_str(), recovered_call.exit_code), ("so far", None));
    assert_eq!(recovered_call.execution_ref.as_deref(), Some("executions/act_9"));
    assert!(pids_running("sleep 71906").is_empty());
    assert!(!fixture.workbench.recover("act_10").unwrap().was_started);
}

#[test]
fn output_is_not_written_through_a_link_that_a_tool_made() {
    let mut fixture = WorkbenchFixture::new();
    let victim = fixture.folder.path().join("victim.txt");
    std::fs::write(&victim, "precious").unwrap();
    let link = "ln -s ../../../victim.txt .abide/executions/act_1/stdout; echo printed";
    assert!(fixture.call(&script(link), json!({})).text.starts_with("printed\n"));
    // The same for a session: neither the call's file nor the copies contain it.
    let shell = crate::fixture::stateful_tool("shell", &["bash"]);
    fixture.call(&shell, json!({"text": "true"}));
    let id = fixture.workbench.sessions()[0].id.clone();
    let link = format!("ln -sf ../../../victim.txt .abide/sessions/{id}/stdout; echo one");
    fixture.call(&shell, json!({ "text": link }));
    fixture.call(&shell, json!({"text": "echo two"}));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn a_call_is_reported_although_its_record_cannot_be_written() {
    let mut fixture = WorkbenchFixture::new();
    // Output that is only in the keeper's spool is lost with the folder, so the script waits until the agent has stored
    // it.
    let print = "echo ran; until test -s .abide/executions/act_1/stdout; do :; done";
    let delete = "rm -rf .abide/executions; echo x > .abide/executions";
    let result = fixture.call(&script(&format!("{print}; {delete}")), json!({}));
    assert!(result.text.starts_with("ran\n") && result.text.contains("[exit code 0]"), "{}", result.text);
    assert!(result.text.contains("the record of this call could not be written"), "{}", result.text);
    assert_eq!((result.status, result.exit_code), (ToolStatus::Success, Some(0)));
    std::fs::remove_file(fixture.state().join("executions")).unwrap();
    let shell = crate::fixture::stateful_tool("shell", &["bash"]);
    let result = fixture
        .call(&shell, json!({"text": "rm -rf .abide/executions; echo x > .abide/executions; echo ran"}));
    assert!(result.text.contains("\nran\n[exit code 0]\n[the record of this call"), "{}", result.text);
    assert_eq!(result.status, ToolStatus::Success);
}

#[test]
fn a_script_is_given_a_value_that_begins_with_a_dash_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let mut fixture = WorkbenchFixture::new();
    let path = fixture.folder.path().join("first.sh");
    std::fs::write(&path, "#!/bin/sh\nprintf '%s.' \"$1\"\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(fixture.folder.path().join("first.py"), "import sys\nprint(sys.argv[1] + '.')\n").unwrap();
    for command in
        [&["./first.sh"][..], &["sh", "first.sh"], &["bash", "-e", "first.sh"], &["python3", "first.py"]]
    {
        let tool = ToolDefinition {
            parameters: vec![parameter("value", ParameterInjection::Argument)],
            ..tool("first", command)
        };
        assert_eq!(fixture.call(&tool, json!({"value": "-5"})).text, "-5.\n[exit code 0]", "{command:?}");
    }
    let grep = ToolDefinition {
        parameters: vec![parameter("value", ParameterInjection::Argument)],
        ..tool("find", &["grep", "-c", "-h"])
    };
    // As an option it would be an error; as a pattern it finds nothing.
    assert!(fixture.call(&grep, json!({"value": "--no-such-option"})).text.contains("0\n[exit code 1]"));
}

#[test]
fn tools_and_sessions_work_in_a_directory_whose_name_is_not_utf_8() {
    use std::os::unix::ffi::OsStringExt;
    let folder = tempfile::tempdir().unwrap();
    let unusual = folder.path().join(std::ffi::OsString::from_vec(b"caf\xe9 \xff".to_vec()));
    std::fs::create_dir(&unusual).unwrap();
    let mut workbench = abide_agent::tool::ToolWorkbench::open(crate::fixture::setup(&unusual));
    let mut call = |action: &str, tool: &ToolDefinition, arguments: serde_json::Value| {
        let arguments = arguments.as_object().cloned().unwrap();
        workbench.run(action, tool, &arguments.into()).unwrap().text
    };
    assert_eq!(call("act_1", &script("echo x > made; cat made"), json!({})), "x\n[exit code 0]");
    let shell = crate::fixture::stateful_tool("shell", &["bash"]);
    assert!(call("act_2", &shell, json!({"text": "cat made; y=2"})).ends_with("\nx\n[exit code 0]"));
    assert_eq!(call("act_3", &shell, json!({"text": "echo $y"})), "2\n[exit code 0]");
    let python = crate::fixture::stateful_tool("python", &["python3", "-i", "-q"]);
    assert!(call("act_4", &python, json!({"text": "print(open('made').read())"})).ends_with("\nx"));
    let terminal = on_terminal(script("cat made"));
    assert_eq!(call("act_5", &terminal, json!({})), "x\n[exit code 0]");
    assert!(unusual.join("made").exists());
    let ids: Vec<String> = workbench.sessions().into_iter().map(|open| open.id).collect();
    assert_eq!(workbench.end_existing_sessions(&ids).len(), 2);
}

#[test]
fn a_tool_that_deletes_the_folders_of_calls_ends_when_it_ends() {
    let mut fixture = WorkbenchFixture::new();
    for round in 0..60 {
        let delete = ToolDefinition {
            timeout_sec: Some(60),
            ..script("echo begun; rm -rf .abide/executions; echo done >&2")
        };
        let result = fixture.call(&delete, json!({}));
        assert_eq!((result.exit_code, result.timed_out), (Some(0), false), "round {round}: {}", result.text);
    }
}
