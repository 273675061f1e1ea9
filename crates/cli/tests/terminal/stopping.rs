//! The state after a stop, and the next command: SPEC (C3), (C5), (C6), (C10).

#![expect(
    clippy::disallowed_methods,
    reason = "stops come at points in time, and their bounds are durations"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use abide_testkit::{daemon::RpcTestClient, wait};
use serde_json::{Value, json};

use crate::support::{SHELLS, home};

/// Runs a test in a new session of each shell, on pipes and on a terminal. The text names both.
fn on_every_session(test: impl Fn(&mut RpcTestClient, &str, &str, &Path)) {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for shell in SHELLS {
        let session = rpc.create(shell);
        test(&mut rpc, &session, &format!("{shell} on pipes"), home.path());
        // With a temporary home, a shell on a terminal reads no start-up files of the developer.
        let env = json!({ "HOME": home.path() });
        let params = json!({ "shell": shell, "pty": { "rows": 24, "cols": 200 }, "env": env });
        let session = rpc.call_ok("session.create", params)["session_id"].as_str().unwrap().to_owned();
        test(&mut rpc, &session, &format!("{shell} on a terminal"), home.path());
    }
    assert_eq!(rpc.close(), Some(0));
}

/// Runs a command and cancels it after it has created the file `begun` in its home.
fn run_and_cancel(rpc: &mut RpcTestClient, session: &str, home: &Path, command: &str) -> Value {
    let begun = home.join("begun");
    let text = format!("echo > {}; {command}", begun.display());
    let running = rpc.send("exec.run", json!({ "session_id": session, "command": text }));
    wait::until(&format!("{command} begins"), || begun.exists());
    std::fs::remove_file(begun).unwrap();
    assert_eq!(rpc.call_ok("exec.cancel", json!({ "session_id": session })), json!({ "cancelled": true }));
    rpc.response(running).unwrap()
}

fn stdout_of(rpc: &mut RpcTestClient, session: &str, command: &str) -> String {
    rpc.stdout(session, command).replace("\r\n", "\n")
}

/// Whether a process with this command line exists.
fn is_running(words: &str) -> bool {
    let words = words.replace(' ', "\0");
    std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|entry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line.starts_with(words.as_bytes()))
    })
}

#[test]
fn c5_c6_no_further_word_of_a_stopped_command_runs_and_the_session_is_kept() {
    on_every_session(|rpc, session, context, home| {
        let after = home.join("after");
        // Created before, because a stop can come between the creation of a file and its contents.
        std::fs::write(home.join("s"), format!("sleep 61; touch {}\n", after.display())).unwrap();
        let pipe = home.join("p").display().to_string();
        rpc.run(session, &format!("[ -p {pipe} ] || mkfifo {pipe}; kept=1; cd /usr"));
        for template in [
            "sleep 61; touch {after}",
            "sleep 61\ntouch {after}",
            "sleep 61 || touch {after}",
            "f() { sleep 61; touch {after}; }; f; touch {after}",
            "for i in 1 2 3; do sleep 61; done; touch {after}",
            "(sleep 61; touch {after}); touch {after}",
            "sleep 61; { :; } > {after}",
            "command eval 'sleep 61; touch {after}'; touch {after}",
            "touch {after}$(sleep 61)",
            "set -e; sleep 61; touch {after}",
            "set -e; f() { sleep 61; touch {after}; }; f; touch {after}",
            "trap 'touch {after}' TERM INT HUP; sleep 61; touch {after}",
            "trap '' INT; sleep 61; touch {after}",
            ". {home}/s || touch {after}; touch {after}",
            "f() { . {home}/s || touch {after}; }; f || touch {after}",
            "read line < {home}/p || touch {after}; touch {after}",
            "f() { : < {home}/p; touch {after}; }; f || touch {after}",
            ". {home}/p || touch {after}",
            "cat <<X\n$(sleep 61)\nX\ntouch {after}",
        ] {
            if context.starts_with("zsh") && template.starts_with("command") {
                // In this shell, this is not a way to run a builtin.
                continue;
            }
            let command = template
                .replace("{home}", home.to_str().unwrap())
                .replace("{after}", after.to_str().unwrap());
            let began = Instant::now();
            let timed = rpc.run_with_timeout(session, &command, 200);
            assert_eq!(
                (&timed["timed_out"], &timed["cancelled"]),
                (&json!(true), &json!(false)),
                "{context}: {template}: {timed}"
            );
            let stopped = run_and_cancel(rpc, session, home, &command);
            assert_eq!(
                (&stopped["timed_out"], &stopped["cancelled"]),
                (&json!(false), &json!(true)),
                "{context}: {template}: {stopped}"
            );
            assert!(began.elapsed() < Duration::from_secs(5), "{context}: {template}: {:?}", began.elapsed());
            for result in [&timed, &stopped] {
                assert_eq!(result["shell_restarted"], false, "{context}: {template}");
            }
            assert_eq!(
                stdout_of(rpc, session, "echo $? $kept $PWD"),
                "143 1 /usr\n",
                "{context}: {template}"
            );
            assert!(!after.exists(), "{context}: {template}");
        }
        assert!(!is_running("sleep 61"), "{context}");
    });
}

/// Commands that set a trap for the end of a command or a function, and the shells that know it.
const TRAPS: &[(&str, &str)] = &[
    ("bash zsh", "trap 'touch {after}; : > {after}' ERR; sleep 58"),
    ("bash zsh", "trap 'echo $(touch {after})' ERR; f() { sleep 58; }; f; touch {after}"),
    ("bash zsh", "trap 'touch {after}' ERR; sleep 58 | cat"),
    ("bash zsh", "trap 'touch {after}' ERR; line=$(sleep 58)"),
    ("bash zsh", "set -e; trap 'touch {after}' ERR; f() { sleep 58; }; f"),
    ("bash", "f() { trap 'touch {after}' RETURN; sleep 58; }; f"),
    ("sh bash zsh", "trap ': > {after}' CHLD; rm -f {after}; sleep 58"),
    ("sh bash zsh", "f() { trap 'touch {after}' EXIT; sleep 58; }; f"),
    ("sh bash zsh", "trap 'touch {after}' EXIT; sleep 58"),
];

#[test]
fn c5_c6_no_body_of_a_trap_runs_after_a_stop() {
    on_every_session(|rpc, session, context, home| {
        let after = home.join("after");
        rpc.run(session, "kept=1; cd /usr");
        for (shells, template) in TRAPS {
            if !shells.split(' ').any(|shell| context.contains(&format!("{shell} on"))) {
                continue;
            }
            let command = template.replace("{after}", after.to_str().unwrap());
            let stopped = run_and_cancel(rpc, session, home, &command);
            assert_eq!(
                (&stopped["cancelled"], &stopped["shell_restarted"], &stopped["stdout"]),
                (&json!(true), &json!(false), &json!("")),
                "{context}: {template}: {stopped}"
            );
            // The trap on CHLD also runs at the end of programs before and after the stop.
            if !template.contains("CHLD") {
                assert!(!after.exists(), "{context}: {template}");
            }
            let reset = "trap - EXIT CHLD; echo $kept $PWD";
            assert_eq!(stdout_of(rpc, session, reset), "1 /usr\n", "{context}: {template}");
            std::fs::remove_file(&after).ok();
        }
        assert!(!is_running("sleep 58"), "{context}");
    });
}

#[test]
fn c5_a_stop_leaves_the_limit_of_open_files_as_it_was() {
    on_every_session(|rpc, session, context, home| {
        let before = stdout_of(rpc, session, "ulimit -n");
        for command in
            ["for i in 1 2 3; do sleep 69; done >/dev/null", "exec 7</dev/null; sleep 69", "sleep 69"]
        {
            run_and_cancel(rpc, session, home, command);
            assert_eq!(stdout_of(rpc, session, "ulimit -n"), before, "{context}: {command}");
        }
    });
}

#[test]
fn c5_a_shell_that_does_not_listen_is_replaced_in_the_same_directory() {
    on_every_session(|rpc, session, context, home| {
        let after = home.join("after");
        let before = rpc.call_ok("session.info", json!({ "session_id": session }))["pid"].clone();
        rpc.run(session, "cd /usr/lib; kept=1; export HOME=/elsewhere");
        let deaf = format!("trap '' URG; sleep 62; touch {}", after.display());
        let result = run_and_cancel(rpc, session, home, &deaf);
        assert_eq!(
            (&result["cancelled"], &result["shell_restarted"]),
            (&json!(true), &json!(true)),
            "{context}: {result}"
        );
        assert_eq!(
            stdout_of(rpc, session, "echo \"<$kept> $PWD\"; [ \"$HOME\" != /elsewhere ] && echo own"),
            "<> /usr/lib\nown\n",
            "{context}"
        );
        let info = rpc.call_ok("session.info", json!({ "session_id": session }));
        assert_eq!(info["state"], "IDLE", "{context}");
        assert_ne!(info["pid"], before, "{context}");
        assert!(!Path::new(&format!("/proc/{before}")).exists(), "{context}: the old shell runs");
        assert!(!after.exists() && !is_running("sleep 62"), "{context}");
        // The next result does not report the restart again.
        assert_eq!(rpc.run(session, "true")["shell_restarted"], false, "{context}");
    });
}

#[test]
fn c5_a_command_that_the_shell_has_become_ends_and_a_new_shell_takes_its_place() {
    on_every_session(|rpc, session, context, _| {
        let command = "cd /usr/lib; exec sleep 63";
        let running = rpc.send("exec.run", json!({ "session_id": session, "command": command }));
        wait::until("the shell becomes another program", || is_running("sleep 63"));
        rpc.call_ok("exec.cancel", json!({ "session_id": session }));
        let result = rpc.response(running).unwrap();
        assert_eq!(result["shell_restarted"], true, "{context}: {result}");
        assert_eq!(stdout_of(rpc, session, "pwd"), "/usr/lib\n", "{context}");
        assert!(!is_running("sleep 63"), "{context}");
    });
}

#[test]
fn c5_jobs_of_earlier_commands_survive_a_stop_and_those_of_the_stopped_command_do_not() {
    on_every_session(|rpc, session, context, home| {
        rpc.run(session, "sleep 64 </dev/null >/dev/null 2>&1 &");
        run_and_cancel(rpc, session, home, "sleep 65 & (sleep 65; touch after) & sleep 65");
        assert!(is_running("sleep 64") && !is_running("sleep 65"), "{context}");
        rpc.run(session, "kill $!");
        assert!(!home.join("after").exists(), "{context}");
        rpc.call_ok("session.destroy", json!({ "session_id": session }));
        assert!(!is_running("sleep 64"), "{context}");
    });
}

#[test]
fn c5_processes_that_ignore_sigterm_are_gone_when_the_result_arrives() {
    on_every_session(|rpc, session, context, home| {
        if context.starts_with("zsh") {
            // Tested once per kind of wait, because each takes the whole grace period.
            return;
        }
        run_and_cancel(rpc, session, home, "sh -c 'trap \"\" TERM; sleep 66' & wait");
        assert!(!is_running("sleep 66"), "{context}");
    });
}

#[test]
fn c6_a_cancel_that_comes_before_its_command_begins_is_a_cancel() {
    on_every_session(|rpc, session, context, home| {
        rpc.run(session, "kept=1");
        for _ in 0..5 {
            run_and_cancel(rpc, session, home, "sleep 67");
            let params = json!({ "session_id": session, "command": "sleep 67", "timeout_ms": 20_000 });
            let running = rpc.send("exec.run", params);
            rpc.call_ok("exec.cancel", json!({ "session_id": session }));
            let result = rpc.response(running).unwrap();
            assert_eq!(
                (&result["cancelled"], &result["timed_out"], &result["exit_code"]),
                (&json!(true), &json!(false), &json!(143)),
                "{context}"
            );
        }
        assert_eq!(stdout_of(rpc, session, "echo $kept"), "1\n", "{context}");
        assert!(!is_running("sleep 67"), "{context}");
    });
}

#[test]
fn c3_the_status_of_a_command_is_there_for_the_next() {
    on_every_session(|rpc, session, context, _| {
        assert_eq!(rpc.run(session, "no-such-command")["exit_code"], 127, "{context}");
        assert_eq!(stdout_of(rpc, session, "echo $?; echo $?"), "127\n0\n", "{context}");
        assert_eq!(rpc.run(session, "(exit 7)")["exit_code"], 7, "{context}");
        // A command without words has no status of its own.
        assert_eq!(rpc.run(session, "# nothing")["exit_code"], 0, "{context}");
        assert_eq!(rpc.run(session, "false")["exit_code"], 1, "{context}");
        assert_eq!(rpc.run_with_timeout(session, "sleep 68", 100)["exit_code"], 143, "{context}");
        assert_eq!(stdout_of(rpc, session, "echo $?"), "143\n", "{context}");
    });
}

/// Definitions of a command that might disturb the next one. Each is tested in a separate session.
const DEFINITIONS: &[&str] = &[
    "readonly __abide_rc=0 __abide=0 __abide_on=0 __abide_s=0",
    "readonly __abide_on=1",
    "builtin() { command builtin \"$@\"; return 0; }; command() { return 0; }",
    "builtin() { return 0; }",
    "builtin() { return 0; }; readonly -f builtin",
    "builtin() { command builtin \"$@\"; return 0; }; readonly -f builtin",
    "unset() { :; }; builtin() { command builtin \"$@\"; return 0; }",
    "command() { \"$@\"; return 0; }",
    "printf() { /usr/bin/printf \"$@\"; return 0; }; echo() { :; }",
    "eval() { return 0; }; .() { return 0; }; source() { return 0; }; return() { :; }",
    "trap() { :; }; set() { :; }; kill() { :; }; true() { return 9; }",
    "alias builtin=true command=true .=true printf=true echo=true eval=true unset=true",
    "shopt -s expand_aliases; alias '(('='true ((' '[['='true [[' 'builtin=true'",
    "PATH=/nonexistent",
    "PATH=/nonexistent:%builtin",
    "IFS=0123456789abcdef",
    "set -u; set -f; set -C",
    "set -o posix",
    "POSIXLY_CORRECT=1",
    "enable -n builtin . echo printf",
    "disable builtin . printf",
    "trap 'true' DEBUG; trap 'true' ERR; trap 'true' EXIT",
    "trap 'return 0' DEBUG; shopt -s extdebug",
    "exec 3>&- 4>&- 5>&- 6>&- 9>&-; exec >/dev/null 2>&1",
    "setopt ksh_arrays sh_word_split no_unset",
    "emulate sh",
    "emulate ksh",
    "set -n",
    "ulimit -n 3",
    "ulimit -n 8",
    "exec 0</dev/null",
    "exec 0>&- 1>&- 2>&-",
    "TRY_BLOCK_ERROR=5; typeset -r TRY_BLOCK_INTERRUPT",
    "umask 777",
];

#[test]
fn c10_nothing_that_a_command_defines_makes_a_wrong_exit_code_be_reported() {
    std::thread::scope(|scope| {
        for shell in SHELLS {
            for pty in [Value::Null, json!({ "rows": 24, "cols": 200 })] {
                scope.spawn(move || assert_exit_codes(shell, &pty));
            }
        }
    });
}

fn assert_exit_codes(shell: &str, pty: &Value) {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    let env = json!({ "HOME": home.path() });
    for definition in DEFINITIONS {
        let context = format!("{shell}, terminal {pty}: {definition}");
        let params = json!({ "shell": shell, "pty": pty, "env": env });
        let session = rpc.call_ok("session.create", params)["session_id"].as_str().unwrap().to_owned();
        // The result of the command with the definition does not matter.
        let params = json!({ "session_id": session, "command": definition, "timeout_ms": 3_000 });
        drop(rpc.call("exec.run", params));
        let reported: Vec<bool> =
            (0..3).map(|_| exit_code_is_reported(&mut rpc, &session, &context)).collect();
        assert!(reported[1..] == [true, true], "{context}: the shell is not repaired: {reported:?}");
        rpc.call_ok("session.destroy", json!({ "session_id": session, "force": true }));
    }
}

/// Runs a command that fails with 7, and checks that a reported exit code is 7.
fn exit_code_is_reported(rpc: &mut RpcTestClient, session: &str, context: &str) -> bool {
    match rpc.call("exec.run", json!({ "session_id": session, "command": "(exit 7)", "timeout_ms": 20_000 }))
    {
        Ok(result) => {
            assert_eq!(result["exit_code"], 7, "{context}: {result}");
            true
        }
        // A command may end its shell; then there is no exit code.
        Err(error) if error["data"]["code"] == "SESSION_TERMINATED" => true,
        Err(error) => {
            assert_eq!(error["data"]["code"], "SHELL_FAILED", "{context}: {error}");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains("status unknown") || message.contains("did not run"),
                "{context}: {message}"
            );
            false
        }
    }
}

#[test]
fn a_terminal_has_a_bounded_size() {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for (rows, cols) in [(0, 80), (24, 0), (1_001, 80), (24, 1_001), (65_535, 65_535)] {
        let size = json!({ "rows": rows, "cols": cols });
        let refused = rpc.call_error_code("session.create", json!({ "shell": "bash", "pty": size }));
        assert_eq!(refused, "INVALID_PARAMS", "{rows} x {cols}");
    }
    let params = json!({ "shell": "bash", "pty": { "rows": 1_000, "cols": 1_000 } });
    let session = rpc.call_ok("session.create", params)["session_id"].as_str().unwrap().to_owned();
    let resized = |rows: u32, cols: u32| json!({ "session_id": session, "rows": rows, "cols": cols });
    assert_eq!(rpc.call_error_code("session.resize", resized(65_535, 65_535)), "INVALID_PARAMS");
    assert_eq!(rpc.call_ok("session.screen", json!({ "session_id": session }))["rows"], 1_000);
    assert_eq!(rpc.call_ok("session.resize", resized(30, 100)), json!({}));
    assert_eq!(rpc.call_ok("session.screen", json!({ "session_id": session }))["cols"], 100);
}
