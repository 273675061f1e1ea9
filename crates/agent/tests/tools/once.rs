//! Programs that run for one call.

use abide_agent::definition::{ParameterInjection, ToolDefinition};
use abide_agent::tool::ToolStatus;
use abide_testkit::wait;
use serde_json::json;

use crate::bench::{WorkbenchFixture, agent_of_its_own, on_terminal, parameter, running, tool};

/// A tool that runs a shell script.
fn script(text: &str) -> ToolDefinition {
    tool("script", &["sh", "-c", text])
}

#[test]
fn what_a_tool_prints_is_seen_and_everything_about_the_call_is_written_down() {
    let mut bench = WorkbenchFixture::new();
    let greet = ToolDefinition {
        parameters: vec![
            parameter("who", ParameterInjection::Argument),
            parameter("text", ParameterInjection::Stdin),
        ],
        ..tool("greet", &["sh", "-c", "echo \"hello $1\"; cat; echo oops >&2; exit 3", "greet"])
    };
    let seen = bench.call(&greet, json!({"who": "you; rm x", "text": "from stdin\n"}));
    assert_eq!(seen.text, "hello you; rm x\nfrom stdin\n[stderr]\noops\n[exit code 3]");
    assert_eq!((seen.exit_code, seen.status, seen.timed_out), (Some(3), ToolStatus::Error, false));
    assert_eq!(seen.execution_ref.as_deref(), Some("executions/act_1"));
    assert_eq!(bench.written("stdout"), b"hello you; rm x\nfrom stdin\n");
    assert_eq!(bench.written("stderr"), b"oops\n");
    let call: serde_json::Value = serde_json::from_slice(&bench.written("call.json")).unwrap();
    assert_eq!((&call["tool"], &call["stdin_bytes"]), (&json!("greet"), &json!(11)));
    let exit: serde_json::Value = serde_json::from_slice(&bench.written("exit.json")).unwrap();
    assert_eq!((&exit["exit_code"], &exit["printed"]), (&json!(3), &json!([27, 5])));
    assert!(!bench.folder.path().join("record/calls/act_1/held").exists(), "nothing of the keeper is left");
}

#[test]
fn a_tool_that_reads_what_it_was_not_given_finds_the_end_at_once() {
    let seen = WorkbenchFixture::new().call(&script("cat; echo done"), json!({}));
    assert_eq!(seen.text, "done\n[exit code 0]");
}

#[test]
fn a_missing_program_and_a_missing_directory_are_told_to_the_model() {
    let mut bench = WorkbenchFixture::new();
    let seen = bench.call(&tool("t", &["no-such-program-here"]), json!({}));
    assert_eq!(
        seen.text,
        "the tool could not be started: there is no program \"no-such-program-here\": it is not installed, or not in PATH"
    );
    assert_eq!((seen.status, seen.exit_code), (ToolStatus::Error, None));
    let seen = bench.call(&tool("t", &["./not-here.sh"]), json!({}));
    assert!(seen.text.contains("there is no program \"./not-here.sh\""), "{}", seen.text);
    let seen =
        bench.call(&ToolDefinition { cwd: Some("gone".to_owned()), ..tool("t", &["true"]) }, json!({}));
    assert!(seen.text.contains("there is no directory"), "{}", seen.text);
}

#[test]
fn a_tool_that_takes_too_long_is_stopped_with_everything_that_it_started_and_keeps_what_it_printed() {
    let mut bench = WorkbenchFixture::new();
    let slow =
        ToolDefinition { timeout_sec: Some(1), ..script("echo begun; setsid sleep 71901 & sleep 71902") };
    let seen = bench.call(&slow, json!({}));
    assert_eq!((seen.timed_out, seen.status), (true, ToolStatus::TimedOut));
    assert!(seen.text.starts_with("begun\n[stopped because it took longer than 1 s"), "{}", seen.text);
    assert!(running("sleep 71901").is_empty() && running("sleep 71902").is_empty());
}

#[test]
fn a_tool_that_does_not_listen_is_killed_after_the_grace() {
    let mut bench = WorkbenchFixture::new();
    let deaf = ToolDefinition {
        timeout_sec: Some(1),
        ..script("trap '' TERM HUP; echo deaf; while :; do sleep 0.2; done")
    };
    let seen = bench.call(&deaf, json!({}));
    assert_eq!((seen.timed_out, seen.exit_code), (true, Some(137)));
    assert!(seen.text.starts_with("deaf\n"), "{}", seen.text);
}

#[test]
fn a_child_that_keeps_the_pipes_open_neither_holds_the_call_up_nor_survives_it() {
    let mut bench = WorkbenchFixture::new();
    let leaving = script("setsid sleep 71903 & (sleep 71904 &) ; echo left");
    let seen = bench.call(&leaving, json!({}));
    assert_eq!(seen.text, "left\n[exit code 0]");
    assert!(running("sleep 71903").is_empty() && running("sleep 71904").is_empty());
}

#[test]
fn a_gigabyte_is_survived_with_its_beginning_its_end_and_the_way_to_the_rest() {
    let mut bench = WorkbenchFixture::new();
    let loud = script("echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last");
    let before = resident();
    let seen = bench.call(&loud, json!({}));
    // Other tests of this process run concurrently. A quarter of the printed amount is far below all of it.
    assert!(resident() < before + (256 << 10), "memory grew from {before} to {} KiB", resident());
    assert_eq!(seen.exit_code, Some(0));
    assert!(seen.text.len() < 17 << 10, "{} bytes are shown", seen.text.len());
    assert!(seen.text.starts_with("first\nxxx") && seen.text.ends_with("xxx\nlast\n[exit code 0]"));
    let told = "the first 268435456 bytes are in .abide/executions/act_1/stdout, the last in .abide/executions/act_1/stdout.tail";
    assert!(seen.text.contains(told), "{}", seen.text.replace('x', ""));
    assert_eq!(bench.written("stdout").len(), 256 << 20);
    assert!(bench.written("stdout.tail").ends_with(b"x\nlast\n"));
}

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("memory is told");
    line.trim().trim_end_matches(" kB").parse().expect("it is a number")
}

#[test]
fn binary_output_is_said_to_be_binary() {
    let seen = WorkbenchFixture::new().call(&script("head -c 4096 /dev/urandom; printf '\\0'"), json!({}));
    assert_eq!(
        seen.text,
        "[binary output, 4097 bytes; everything is in .abide/executions/act_1/stdout]\n[exit code 0]"
    );
}

#[test]
fn a_tool_on_a_terminal_has_one_and_shows_its_screen() {
    let seen =
        WorkbenchFixture::new().call(&on_terminal(script("test -t 1 && printf 'a\\033[2;5Hb'")), json!({}));
    assert_eq!(seen.text, "a\n    b\n[exit code 0]");
}

#[test]
fn a_tool_is_ended_when_the_agent_is_stopped() {
    let mut bench = WorkbenchFixture::new();
    let stop = bench.workbench.setup_mut().stop.clone();
    let marker = bench.folder.path().join("begun");
    let waiting = script("echo here; touch begun; sleep 71905");
    let watcher = std::thread::spawn(move || {
        wait::until("the command has begun", || marker.exists());
        stop.0.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let seen = bench.call(&waiting, json!({}));
    watcher.join().unwrap();
    assert!(seen.interrupted && seen.text.starts_with("here\n[interrupted"), "{}", seen.text);
    assert!(running("sleep 71905").is_empty());
}

#[test]
fn what_a_dead_agent_left_running_is_ended_and_what_it_printed_is_kept() {
    let mut bench = WorkbenchFixture::new();
    std::fs::write(bench.folder.path().join("once"), "").unwrap();
    let mut agent = agent_of_its_own(bench.folder.path());
    agent.kill().unwrap();
    agent.wait().unwrap();
    let found = bench.workbench.recover("act_9").unwrap();
    assert!(found.begun && found.was_running, "{found:?}");
    assert_eq!((found.output.as_str(), found.exit_code), ("so far", None));
    assert_eq!(found.execution_ref.as_deref(), Some("executions/act_9"));
    assert!(running("sleep 71906").is_empty());
    assert!(!bench.workbench.recover("act_10").unwrap().begun);
}

#[test]
fn output_is_not_written_through_a_link_that_a_tool_made() {
    let mut bench = WorkbenchFixture::new();
    let victim = bench.folder.path().join("victim.txt");
    std::fs::write(&victim, "precious").unwrap();
    let link = "ln -s ../../../victim.txt .abide/executions/act_1/stdout; echo printed";
    assert!(bench.call(&script(link), json!({})).text.starts_with("printed\n"));
    // The same for a session: neither the call's file nor the copies contain it.
    let shell = crate::bench::session("shell", &["bash"]);
    bench.call(&shell, json!({"text": "true"}));
    let id = bench.workbench.sessions()[0].id.clone();
    let link = format!("ln -sf ../../../victim.txt .abide/sessions/{id}/stdout; echo one");
    bench.call(&shell, json!({ "text": link }));
    bench.call(&shell, json!({"text": "echo two"}));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn a_call_that_ran_is_told_although_its_record_cannot_be_written() {
    let mut bench = WorkbenchFixture::new();
    // Output that is only in the keeper's spool is lost with the folder, so the script waits until the agent has stored
    // it.
    let print = "echo ran; until test -s .abide/executions/act_1/stdout; do :; done";
    let delete = "rm -rf .abide/executions; echo x > .abide/executions";
    let seen = bench.call(&script(&format!("{print}; {delete}")), json!({}));
    assert!(seen.text.starts_with("ran\n") && seen.text.contains("[exit code 0]"), "{}", seen.text);
    assert!(seen.text.contains("the record of this call could not be written"), "{}", seen.text);
    assert_eq!((seen.status, seen.exit_code), (ToolStatus::Success, Some(0)));
    std::fs::remove_file(bench.state().join("executions")).unwrap();
    let shell = crate::bench::session("shell", &["bash"]);
    let seen =
        bench.call(&shell, json!({"text": "rm -rf .abide/executions; echo x > .abide/executions; echo ran"}));
    assert!(seen.text.contains("\nran\n[exit code 0]\n[the record of this call"), "{}", seen.text);
    assert_eq!(seen.status, ToolStatus::Success);
}

#[test]
fn a_script_is_given_a_value_that_begins_with_a_dash_as_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let mut bench = WorkbenchFixture::new();
    let path = bench.folder.path().join("first.sh");
    std::fs::write(&path, "#!/bin/sh\nprintf '%s.' \"$1\"\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(bench.folder.path().join("first.py"), "import sys\nprint(sys.argv[1] + '.')\n").unwrap();
    for command in
        [&["./first.sh"][..], &["sh", "first.sh"], &["bash", "-e", "first.sh"], &["python3", "first.py"]]
    {
        let tool = ToolDefinition {
            parameters: vec![parameter("value", ParameterInjection::Argument)],
            ..tool("first", command)
        };
        assert_eq!(bench.call(&tool, json!({"value": "-5"})).text, "-5.\n[exit code 0]", "{command:?}");
    }
    let grep = ToolDefinition {
        parameters: vec![parameter("value", ParameterInjection::Argument)],
        ..tool("find", &["grep", "-c", "-h"])
    };
    // As an option it would be an error; as a pattern it finds nothing.
    assert!(bench.call(&grep, json!({"value": "--no-such-option"})).text.contains("0\n[exit code 1]"));
}

#[test]
fn tools_and_sessions_work_in_a_directory_whose_name_is_not_utf_8() {
    use std::os::unix::ffi::OsStringExt;
    let folder = tempfile::tempdir().unwrap();
    let strange = folder.path().join(std::ffi::OsString::from_vec(b"caf\xe9 \xff".to_vec()));
    std::fs::create_dir(&strange).unwrap();
    let mut workbench = abide_agent::tool::ToolWorkbench::open(crate::bench::setup(&strange));
    let mut call = |action: &str, tool: &ToolDefinition, arguments: serde_json::Value| {
        let arguments = arguments.as_object().cloned().unwrap();
        workbench.run(action, tool, &arguments.into()).unwrap().text
    };
    assert_eq!(call("act_1", &script("echo x > made; cat made"), json!({})), "x\n[exit code 0]");
    let shell = crate::bench::session("shell", &["bash"]);
    assert!(call("act_2", &shell, json!({"text": "cat made; y=2"})).ends_with("\nx\n[exit code 0]"));
    assert_eq!(call("act_3", &shell, json!({"text": "echo $y"})), "2\n[exit code 0]");
    let python = crate::bench::session("python", &["python3", "-i", "-q"]);
    assert!(call("act_4", &python, json!({"text": "print(open('made').read())"})).ends_with("\nx"));
    let terminal = on_terminal(script("cat made"));
    assert_eq!(call("act_5", &terminal, json!({})), "x\n[exit code 0]");
    assert!(strange.join("made").exists());
    let ids: Vec<String> = workbench.sessions().into_iter().map(|open| open.id).collect();
    assert_eq!(workbench.end_all(&ids).len(), 2);
}

#[test]
fn a_tool_that_deletes_the_folders_of_calls_ends_when_it_ends() {
    let mut bench = WorkbenchFixture::new();
    for round in 0..60 {
        let delete = ToolDefinition {
            timeout_sec: Some(60),
            ..script("echo begun; rm -rf .abide/executions; echo done >&2")
        };
        let seen = bench.call(&delete, json!({}));
        assert_eq!((seen.exit_code, seen.timed_out), (Some(0), false), "round {round}: {}", seen.text);
    }
}
