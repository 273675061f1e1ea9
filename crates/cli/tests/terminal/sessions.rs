//! Sessions: creation, failure, end and adoption. SPEC (C1), (C2), (C4), (C7), (C8), (C9).

use std::path::Path;

use abide_testkit::{daemon::RpcTestClient, wait};
use serde_json::{Value, json};

use crate::support::{SHELLS, home};

#[test]
fn c2_a_session_that_cannot_begin_says_why_and_leaves_nothing_behind() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for (params, code) in [
        (json!({ "shell": "/no/such/shell" }), "SHELL_NOT_FOUND"),
        (json!({ "shell": "no-such-shell" }), "SHELL_NOT_FOUND"),
        (json!({ "shell": "/etc/passwd" }), "SHELL_NOT_FOUND"),
        (json!({ "shell": "/bin/false" }), "SHELL_FAILED"),
        (json!({ "shell": "/bin/true" }), "SHELL_FAILED"),
        (json!({ "cwd": "/no/such/directory" }), "CWD_UNUSABLE"),
        (json!({ "cwd": "/etc/passwd" }), "CWD_UNUSABLE"),
        (json!({ "env": { "A=B": "x" } }), "INVALID_PARAMS"),
        (json!({ "shel": "/bin/sh" }), "INVALID_PARAMS"),
    ] {
        assert_eq!(rpc.call_error_code("session.create", params.clone()), code, "{params}");
    }
    assert_eq!(rpc.call_ok("session.list", json!({})), json!({ "sessions": [] }));
    assert_eq!(std::fs::read_dir(home.path().join("keepers")).unwrap().count(), 0);
}

#[test]
fn c1_session_info_has_no_environment_values() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let created = rpc.call_ok(
        "session.create",
        json!({ "name": "mine", "cwd": "/usr", "env": { "TOKEN": "very-secret" } }),
    );
    let id = created["session_id"].as_str().unwrap();
    assert!(id.len() == 8 && id.starts_with("s-"), "{id}");
    assert_eq!(
        (&created["state"], &created["shell"], &created["cwd"], &created["name"]),
        (&json!("IDLE"), &json!("/bin/sh"), &json!("/usr"), &json!("mine"))
    );
    assert_eq!(rpc.stdout(id, "echo $TOKEN; pwd"), "very-secret\n/usr\n");
    let info = rpc.call_ok("session.info", json!({ "session_id": id }));
    assert_eq!((&info["env_keys"], &info["command_count"]), (&json!(["TOKEN"]), &json!(1)));
    let listed = rpc.call_ok("session.list", json!({}));
    assert!(!format!("{info}{listed}").contains("very-secret"));
    let files = walk(&home.path().join("keepers"));
    assert!(
        files.iter().all(|file| !std::fs::read(file)
            .unwrap_or_default()
            .windows(11)
            .any(|at| at == b"very-secret")
            || file.to_str().unwrap().contains("spool")),
        "a secret lies outside the spool"
    );
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files.extend(walk(&entry.path()));
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files
}

#[test]
fn c9_the_pool_has_a_bound_and_ended_sessions_do_not_count() {
    let home = home();
    let mut rpc = RpcTestClient::with_env(&home, &[("ABIDE_TERMINAL_MAX_SESSIONS", "2")]);
    let first = rpc.create("/bin/sh");
    rpc.create("/bin/sh");
    assert_eq!(rpc.call_error_code("session.create", json!({})), "MAX_SESSIONS_REACHED");
    assert_eq!(
        rpc.call_ok("session.destroy", json!({ "session_id": first })),
        json!({ "session_id": first, "state": "TERMINATED" })
    );
    rpc.create("/bin/sh");
    assert_eq!(rpc.state(&first), "TERMINATED");
    assert_eq!(
        rpc.call_error_code("exec.run", json!({ "session_id": first, "command": "true" })),
        "SESSION_TERMINATED"
    );
    assert_eq!(rpc.call_error_code("session.info", json!({ "session_id": "s-000000" })), "SESSION_NOT_FOUND");
}

#[test]
fn c4_a_stream_brings_every_byte_once_and_reads_what_is_sent() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for shell in SHELLS {
        let session = rpc.create(shell);
        let stream = rpc.call_ok(
            "exec.stream",
            json!({ "session_id": session, "command": "seq 1 200000; echo e >&2; (exit 5)" }),
        );
        let (out, err, last) = rpc.collect(&stream);
        let expected: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
        assert!(out == expected.as_bytes() && err == b"e\n", "{shell}: {} bytes", out.len());
        assert_eq!(
            (&last["type"], &last["exit_code"], &last["timed_out"]),
            (&json!("exit"), &json!(5), &json!(false))
        );

        let stream = rpc.call_ok(
            "exec.stream",
            json!({ "session_id": session, "command": "while read x; do echo got $x; done; echo end" }),
        );
        rpc.call_ok("exec.input", json!({ "session_id": session, "data": "one\ntwo\n" }));
        rpc.call_ok("exec.input", json!({ "session_id": session, "data": "three\n", "eof": true }));
        assert_eq!(rpc.collect(&stream).0, b"got one\ngot two\ngot three\nend\n", "{shell}");
        assert_eq!(
            rpc.call_error_code("exec.input", json!({ "session_id": session, "data": "late" })),
            "INVALID_PARAMS"
        );

        let stream =
            rpc.call_ok("exec.stream", json!({ "session_id": session, "command": "cat", "timeout_ms": 200 }));
        assert_eq!(rpc.collect(&stream).2["timed_out"], true, "{shell}");
        assert_eq!(rpc.stdout(&session, "cat; echo alive"), "alive\n", "{shell}");
    }
}

#[test]
fn c7_destroy_leaves_no_descendant_not_even_one_that_called_setsid() {
    for force in [false, true] {
        let home = home();
        let mut rpc = RpcTestClient::start(&home);
        for shell in SHELLS {
            let session = rpc.create(shell);
            rpc.run(&session, "setsid sleep 1000 & setsid -f sh -c 'trap \"\" TERM HUP; while :; do sleep 0.1; done'; sleep 1000 &");
            let running = rpc.send("exec.run", json!({ "session_id": session, "command": "sleep 1000" }));
            rpc.call_ok("session.destroy", json!({ "session_id": session, "force": force }));
            // The command was ended before it began, or while it ran.
            match rpc.response(running) {
                Ok(result) => assert_eq!(result["cancelled"], true),
                Err(error) => assert_eq!(error["data"]["code"], "SESSION_TERMINATED"),
            }
        }
        let runtime = rpc.pid();
        assert!(home.processes().iter().all(|process| process.pid == runtime));
    }
}

#[test]
fn c8_the_end_of_input_ends_everything() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for shell in SHELLS {
        let session = rpc.create(shell);
        rpc.run(&session, "setsid -f sleep 1000; sleep 1000 &");
        rpc.send("exec.run", json!({ "session_id": session, "command": "sleep 1000" }));
    }
    assert_eq!(rpc.close(), Some(0));
    assert!(home.processes().is_empty());
    assert_eq!(std::fs::read_dir(home.path().join("keepers")).unwrap().count(), 0);
}

#[test]
fn c8_only_a_dead_owners_sessions_are_adopted() {
    let home = home();
    let mut first = RpcTestClient::start(&home);
    let theirs = first.create("bash");
    let mut second = RpcTestClient::start(&home);
    assert_eq!(second.call_ok("session.list", json!({})), json!({ "sessions": [] }));
    let ours = second.create("bash");
    first.run(&theirs, "kept=1; cd /usr");
    first.kill();
    let mut third = RpcTestClient::start(&home);
    let listed = third.call_ok("session.list", json!({}));
    let ids: Vec<&str> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["session_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, [theirs.as_str()]);
    assert_eq!(third.stdout(&theirs, "echo $kept; pwd"), "1\n/usr\n");
    assert_eq!(second.stdout(&ours, "echo mine"), "mine\n");
}

#[test]
fn c8_fifty_running_commands_survive_kill_9_without_a_byte_missing_or_doubled() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let sessions: Vec<String> = (0..50).map(|n| rpc.create(SHELLS[n % 3])).collect();
    for (n, session) in sessions.iter().enumerate() {
        let command = format!(
            "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo {n}-$i; done; sleep 0.5; seq 1 2000; echo e{n} >&2; (exit {})",
            n + 1
        );
        // Only an acknowledged command is known to be running.
        rpc.call_ok("exec.stream", json!({ "session_id": session, "command": command }));
    }
    let before = rpc.next_notification()["params"].clone();
    rpc.kill();
    let mut next = RpcTestClient::start(&home);
    assert_eq!(next.call_ok("session.list", json!({}))["sessions"].as_array().unwrap().len(), 50);
    for (n, session) in sessions.iter().enumerate() {
        let expected: String =
            (1..=400).map(|i| format!("{n}-{i}\n")).chain((1..=2000).map(|i| format!("{i}\n"))).collect();
        let (out, exit) = read_to_end(&mut next, session, "stdout");
        assert!(out == expected, "session {n}: {} of {} bytes", out.len(), expected.len());
        assert_eq!(exit["exit_code"].as_u64(), Some(n as u64 + 1));
        assert_eq!(read_to_end(&mut next, session, "stderr").0, format!("e{n}\n"));
    }
    // A cursor from before the restart is still valid.
    let session = before["stream_id"].as_str().unwrap().split('.').next().unwrap();
    let again = next.call_ok(
        "exec.output",
        json!({
            "session_id": session, "exec_id": "e-1", "stream": before["type"], "offset": before["offset"],
            "limit": before["data"].as_str().unwrap().len(),
        }),
    );
    assert_eq!(again["data"], before["data"]);
    assert_eq!(next.stdout(&sessions[0], "echo alive"), "alive\n");
}

/// Polls a command's output until the command has ended and all output has been read.
fn read_to_end(rpc: &mut RpcTestClient, session: &str, stream: &str) -> (String, Value) {
    let mut text = String::new();
    wait::until_some("the command has ended", || {
        let piece = rpc.call_ok("exec.output", json!({
            "session_id": session, "exec_id": "e-1", "stream": stream, "offset": text.len(), "limit": 1000,
        }));
        assert_eq!(piece["offset"].as_u64(), Some(text.len() as u64));
        text.push_str(piece["data"].as_str().unwrap());
        (piece["end"] == true).then(|| (std::mem::take(&mut text), piece))
    })
}

#[test]
fn c8_a_killed_keeper_ends_its_session_with_an_error() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let session = rpc.create("bash");
    let shell: u32 = rpc.stdout(&session, "echo $$").trim().parse().unwrap();
    let keeper: i32 = rpc.stdout(&session, "echo $PPID").trim().parse().unwrap();
    let running = rpc.send("exec.run", json!({ "session_id": session, "command": "sleep 1000" }));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(keeper).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert_eq!(rpc.response(running).unwrap_err()["data"]["code"], "SESSION_TERMINATED");
    assert_eq!(rpc.state(&session), "TERMINATED");
    assert!(!home.path().join("keepers").join(&session).exists());
    assert!(
        !Path::new(&format!("/proc/{shell}/exe")).exists()
            || std::fs::read_link(format!("/proc/{shell}/exe")).is_err()
    );
}

#[test]
fn a_terminal_session_has_a_screen_a_size_and_takes_keys() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let created = rpc.call_ok(
        "session.create",
        json!({ "shell": "/bin/sh", "pty": { "rows": 10, "cols": 40 }, "env": { "PS1": "> " } }),
    );
    let session = created["session_id"].as_str().unwrap().to_owned();
    let result = rpc.run(&session, "stty size; test -t 1 && echo a terminal");
    assert_eq!(result["stdout"], "10 40\r\na terminal\r\n");
    rpc.call_ok("session.resize", json!({ "session_id": session, "rows": 12, "cols": 60 }));
    assert_eq!(rpc.run(&session, "stty size")["stdout"], "12 60\r\n");
    rpc.call_ok("exec.input", json!({ "session_id": session, "data": "printf 'ty%s\\n' ped\r" }));
    let screen = wait::until_some("the input is on the screen", || {
        let screen = rpc.call_ok("session.screen", json!({ "session_id": session }));
        screen["text"].as_str().unwrap().contains("typed").then_some(screen)
    });
    assert_eq!((&screen["rows"], &screen["cols"]), (&json!(12), &json!(60)));
    let plain = rpc.create("/bin/sh");
    assert_eq!(rpc.call_error_code("session.screen", json!({ "session_id": plain })), "INVALID_PARAMS");
}
