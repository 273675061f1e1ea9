//! Inputs that block other persistent shells, on each supported shell: SPEC (C3), (C5), (C6), (C10) and the traps about
//! terminals.

use crate::support::{SHELLS, home};
use abide_testkit::daemon::RpcTestClient;
use serde_json::json;

/// Runs a test in a new session of each shell.
fn on_every_shell(test: impl Fn(&mut RpcTestClient, &str, &str)) {
    let home = home();
    let mut rpc = RpcTestClient::start(&home);
    for shell in SHELLS {
        let session = rpc.create(shell);
        test(&mut rpc, &session, shell);
    }
    assert_eq!(rpc.close(), Some(0));
}

#[test]
fn c3_directory_variables_functions_and_umask_persist() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "cd /usr; export A=1; b=2; f() { echo from f; }; umask 027");
        assert_eq!(
            rpc.stdout(session, "pwd; echo $A$b; f; umask"),
            "/usr\n12\nfrom f\n027\n".replace("027", umask(shell))
        );
        assert_eq!(rpc.stdout(session, "sh -c 'echo $A$b'"), "1\n");
    });
}

fn umask(shell: &str) -> &'static str {
    if shell == "zsh" { "027" } else { "0027" }
}

#[test]
fn c3_stdout_and_stderr_are_apart_and_the_exit_code_is_the_commands() {
    on_every_shell(|rpc, session, shell| {
        let result = rpc.run(session, "echo out; echo err >&2; (exit 7)");
        let got = (result["stdout"].as_str(), result["stderr"].as_str(), result["exit_code"].as_i64());
        assert_eq!(got, (Some("out\n"), Some("err\n"), Some(7)), "{shell}");
        assert_eq!(rpc.run(session, "sh -c 'kill -9 $$'")["exit_code"], 137, "{shell}");
    });
}

#[test]
fn c3_background_jobs_persist_and_can_be_waited_for() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "sh -c 'read line; exit 3' </dev/null & job=$!");
        assert_eq!(rpc.run(session, "wait $job")["exit_code"], 3, "{shell}");
    });
}

#[test]
fn c10_unterminated_quotes_and_here_documents_end_with_the_command() {
    on_every_shell(|rpc, session, shell| {
        for command in ["echo 'open", "echo \"open", "echo $(", "if true; then", "f() {", "case x in"] {
            assert_ne!(rpc.run(session, command)["exit_code"], 0, "{shell}: {command}");
        }
        assert_eq!(rpc.stdout(session, "cat <<END\nin the document\n"), "in the document\n", "{shell}");
        assert_eq!(rpc.stdout(session, "echo alive"), "alive\n", "{shell}");
    });
}

#[test]
fn c10_a_command_that_reads_stdin_finds_its_end_and_not_our_text() {
    on_every_shell(|rpc, session, shell| {
        assert_eq!(rpc.stdout(session, "cat; read x; echo \"<$x>\"; wc -c"), "<>\n0\n", "{shell}");
        let given =
            json!({ "session_id": session, "command": "read a; cat; echo $a", "stdin": "one\ntwo\n" });
        assert_eq!(rpc.call_ok("exec.run", given)["stdout"], "two\none\n", "{shell}");
        assert_eq!(rpc.stdout(session, "cat; echo end"), "end\n", "{shell}");
    });
}

#[test]
fn c10_a_background_child_that_keeps_the_pipes_holds_nothing_up_and_stays_out_of_later_results() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "cd $ABIDE_HOME");
        let first = rpc.run(
            session,
            "mkfifo go.$$ done.$$; (read go < go.$$; echo late; echo late >&2; echo > done.$$) & echo now",
        );
        assert_eq!(first["stdout"], "now\n", "{shell}");
        let second = rpc.run(session, "echo > go.$$; read x < done.$$; echo second");
        assert_eq!(
            (second["stdout"].as_str(), second["stderr"].as_str()),
            (Some("second\n"), Some("")),
            "{shell}"
        );
        rpc.run(session, "wait; rm -f go.$$ done.$$");
        let late = json!({ "session_id": session, "exec_id": first["exec_id"], "stream": "stderr" });
        assert_eq!(rpc.call_ok("exec.output", late)["data"], "late\n", "{shell}");
    });
}

#[test]
fn c10_output_without_a_newline_with_our_markers_or_of_any_bytes_is_returned_as_it_is() {
    on_every_shell(|rpc, session, shell| {
        assert_eq!(rpc.stdout(session, "printf 'no newline'"), "no newline", "{shell}");
        let forged = "0123456789abcdef 0 hB\nabide exec.run\n";
        assert_eq!(rpc.stdout(session, &format!("printf '%s' '{forged}'")), forged, "{shell}");
        let bytes = json!({ "session_id": session, "command": "printf '\\000\\377\\376\\n\\200'", "encoding": "base64" });
        assert_eq!(rpc.call_ok("exec.run", bytes)["stdout"], "AP/+CoA=", "{shell}");
    });
}

#[test]
fn c10_a_cap_inside_a_character_cuts_before_it_and_counts_what_is_missing() {
    on_every_shell(|rpc, session, shell| {
        let params = json!({ "session_id": session, "command": "printf '\\303\\251\\342\\202\\254x'", "max_output_bytes": 4 });
        let result = rpc.call_ok("exec.run", params);
        assert_eq!(
            (result["stdout"].as_str(), &result["truncated"]),
            (Some("é"), &json!({ "stdout": 4, "stderr": 0 })),
            "{shell}"
        );
    });
}

#[test]
fn c10_exit_and_exec_end_the_session_with_their_own_code() {
    on_every_shell(|rpc, session, shell| {
        assert_eq!(rpc.run(session, "echo last; exit 3")["exit_code"], 3, "{shell}");
        assert_eq!(rpc.state(session), "TERMINATED", "{shell}");
        assert_eq!(
            rpc.call_error_code("exec.run", json!({ "session_id": session, "command": "true" })),
            "SESSION_TERMINATED"
        );
        let other = rpc.create(shell);
        assert_eq!(rpc.run(&other, "exec sh -c 'echo replaced; exit 4'")["exit_code"], 4, "{shell}");
        let killed = rpc.create(shell);
        assert_eq!(rpc.run(&killed, "kill -9 $$")["exit_code"], 137, "{shell}");
    });
}

#[test]
fn c10_errexit_stops_the_command_that_sets_it_and_does_not_wedge_the_next() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "kept=1; set -e");
        assert_eq!(rpc.run(session, "false")["exit_code"], 1, "{shell}");
        assert_eq!(rpc.stdout(session, "echo $kept"), "1\n", "{shell}");
        let stopped = rpc.run(session, "f() { false; echo no; }; set -e; echo one; f; echo no");
        assert_eq!(
            (stopped["stdout"].as_str(), stopped["exit_code"].as_i64()),
            (Some("one\n"), Some(1)),
            "{shell}"
        );
        // A POSIX shell can only exit in this case, and reports it; the others recover.
        let expected = if shell == "/bin/sh" { "TERMINATED" } else { "IDLE" };
        assert_eq!(rpc.state(session), expected, "{shell}");
    });
}

#[test]
fn errors_of_the_shell_itself_end_the_command_and_not_the_session() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "kept=1; readonly fixed=1");
        for command in [
            "set -u; echo $nothing",
            "set +u; echo ${nothing:?is missing}",
            "fixed=2",
            "return 5",
            "no-such-command",
        ] {
            assert_ne!(rpc.run(session, command)["exit_code"], 0, "{shell}: {command}");
        }
        assert_eq!(rpc.stdout(session, "echo $kept"), "1\n", "{shell}");
    });
}

#[test]
fn a_command_cannot_break_the_protocol_with_what_it_does_to_its_shell() {
    on_every_shell(|rpc, session, shell| {
        for command in [
            "printf() { :; }; echo() { :; }; command() { :; }; cd() { :; }; read() { :; }; test() { :; }; true() { return 9; }",
            "unset -f printf echo command cd read test true",
            "alias eval=false printf=false builtin=false command=false set=false",
            "unalias -a",
            "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-",
            "exec 0<&- 1>&- 2>&-",
            "exec >/dev/null 2>&1 </etc/passwd",
            "set -u; set -x",
            "set +x; set +u",
            "set -v",
            "set +v; set -C; set -f",
            "set +C; set +f; unset PATH; IFS=0123456789",
            "PATH=/usr/bin:/bin; unset IFS",
            "trap 'echo trapped' INT TERM HUP USR1",
            "kill -USR1 $$",
            "kill -STOP $$",
            "break; continue",
        ] {
            rpc.run(session, command);
            let after = rpc.run(session, "/bin/echo alive");
            assert_eq!(
                (after["stdout"].as_str(), after["exit_code"].as_i64()),
                (Some("alive\n"), Some(0)),
                "{shell}: {command}"
            );
        }
    });
}

#[test]
fn a_function_or_alias_named_like_a_builtin_has_no_effect_on_results() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "kept=1");
        for word in ["builtin", "command", "eval", "printf", "echo", ".", "unset", "set", "exec", "trap"] {
            let function = format!("{word}() {{ /bin/echo fake; return 9; }}");
            let definition = rpc.call("exec.run", json!({ "session_id": session, "command": function }));
            // If such a function hides the exit status, it is reported as unknown and never guessed.
            let command = json!({ "session_id": session, "command": "/bin/echo $kept; (exit 7)" });
            let mut after = rpc.call("exec.run", command.clone());
            for error in [definition.err(), after.clone().err()].into_iter().flatten() {
                assert_eq!((word, &error["data"]["code"]), ("builtin", &json!("SHELL_FAILED")), "{shell}");
            }
            if after.is_err() {
                after = rpc.call("exec.run", command);
            }
            let after = after.unwrap();
            assert_eq!(
                (after["stdout"].as_str(), after["exit_code"].as_i64()),
                (Some("1\n"), Some(7)),
                "{shell}: {word}"
            );
        }
        let other = rpc.create(shell);
        for word in ["builtin", "command", "eval", "printf", "echo", "unset", "set", "exec"] {
            rpc.run(&other, &format!("alias {word}='/bin/echo fake;'"));
            let after = rpc.run(&other, "/bin/echo alive; (exit 7)");
            assert_eq!(
                (after["stdout"].as_str(), after["exit_code"].as_i64()),
                (Some("alive\n"), Some(7)),
                "{shell}: {word}"
            );
        }
    });
}

#[test]
fn the_unread_rest_of_a_command_is_not_executed() {
    on_every_shell(|rpc, session, shell| {
        let long = format!("return 4\n{}", "echo leaked\n".repeat(5_000));
        assert_eq!(rpc.run(session, &long)["exit_code"], 4, "{shell}");
        for word in ["a", "b", "c"] {
            assert_eq!(rpc.stdout(session, &format!("echo {word}")), format!("{word}\n"), "{shell}");
        }
    });
}

#[test]
fn more_commands_than_a_shell_has_slots_keep_their_own_results() {
    on_every_shell(|rpc, session, shell| {
        for n in 0..50 {
            let result = rpc.run(session, &format!("echo {n}; echo e{n} >&2; (exit {n})"));
            assert_eq!(
                (result["stdout"].as_str(), result["stderr"].as_str(), result["exit_code"].as_i64()),
                (Some(format!("{n}\n").as_str()), Some(format!("e{n}\n").as_str()), Some(n)),
                "{shell}"
            );
        }
    });
}

#[test]
fn the_shells_own_output_can_be_moved_for_one_command_only() {
    on_every_shell(|rpc, session, shell| {
        assert_eq!(rpc.stdout(session, "exec >/dev/null; echo hidden"), "", "{shell}");
        assert_eq!(rpc.stdout(session, "echo visible"), "visible\n", "{shell}");
    });
}

#[test]
fn tracing_shows_the_commands_lines_and_none_of_ours() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "PS4='> '; set -x");
        let traced = rpc.run(session, "echo traced");
        let stderr = traced["stderr"].as_str().unwrap();
        assert!(stderr.ends_with("> echo traced\n") && stderr.lines().count() == 1, "{shell}: {stderr}");
        rpc.run(session, "set +x");
        assert_eq!(rpc.run(session, "echo quiet")["stderr"], "", "{shell}");
    });
}

#[test]
fn c5_a_loop_in_the_shell_that_times_out_keeps_its_variables_and_directory() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "cd /usr; kept=1; n=0");
        for command in [
            "echo begun; while :; do n=$((n+1)); done",
            "echo begun; f() { while :; do :; done; }; g() { while :; do f; done; }; while :; do g; done",
            "echo begun; while :; do sleep 0.01; done",
            "echo begun; eval 'while :; do :; done'",
        ] {
            let result = rpc.run_with_timeout(session, command, 300);
            assert_eq!(
                (result["timed_out"].as_bool(), result["stdout"].as_str()),
                (Some(true), Some("begun\n")),
                "{shell}: {command}"
            );
            assert_eq!(rpc.state(session), "IDLE", "{shell}");
        }
        assert_eq!(
            rpc.stdout(session, "pwd; echo $kept; [ $n -gt 9 ] && echo counted"),
            "/usr\n1\ncounted\n",
            "{shell}"
        );
    });
}

#[test]
fn c5_escalation_starts_with_sigterm_and_output_is_returned() {
    on_every_shell(|rpc, session, shell| {
        let polite = "sh -c 'trap \"echo cleaned; exit 0\" TERM; echo begun; while :; do sleep 0.05; done'";
        let result = rpc.run_with_timeout(session, polite, 300);
        assert_eq!(
            (result["timed_out"].as_bool(), result["stdout"].as_str()),
            (Some(true), Some("begun\ncleaned\n")),
            "{shell}"
        );
        let waiting = rpc.run_with_timeout(session, "sleep 100 & wait", 200);
        assert_eq!(waiting["timed_out"], true, "{shell}");
        let substituted = rpc.run_with_timeout(session, "x=$(while :; do :; done)", 200);
        assert_eq!(substituted["timed_out"], true, "{shell}");
        assert_eq!(rpc.stdout(session, "echo alive"), "alive\n", "{shell}");
    });
}

#[test]
fn c5_a_command_that_takes_no_notice_of_sigterm_is_killed_after_the_grace() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "kept=1");
        let result = rpc.run_with_timeout(
            session,
            "sh -c 'trap \"\" TERM; echo begun; while :; do sleep 0.05; done'",
            200,
        );
        let duration = result["duration_ms"].as_f64().unwrap();
        assert!(result["timed_out"] == true && (5_000.0..8_000.0).contains(&duration), "{shell}: {duration}");
        assert_eq!(rpc.stdout(session, "echo $kept"), "1\n", "{shell}");
    });
}

/// SECURITY 10: the keeper enforces the timeout, and a command can stop it.
#[test]
fn c5_a_command_that_stops_its_keeper_is_stopped_and_the_session_is_kept() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "kept=1");
        let result = rpc.run_with_timeout(session, "kill -STOP $PPID; sleep 60", 200);
        assert_eq!(result["timed_out"], true, "{shell}: {result}");
        assert_eq!(rpc.stdout(session, "echo $kept"), "1\n", "{shell}");
    });
}

#[test]
fn c5_a_shell_that_cannot_be_brought_back_is_replaced_within_the_ladder() {
    on_every_shell(|rpc, session, shell| {
        let result =
            rpc.run_with_timeout(session, "trap '' URG INT TERM; echo begun; while :; do :; done", 200);
        assert_eq!(
            (result["timed_out"].as_bool(), result["stdout"].as_str()),
            (Some(true), Some("begun\n")),
            "{shell}"
        );
        assert_eq!(result["shell_restarted"], true, "{shell}");
        assert_eq!(rpc.state(session), "IDLE", "{shell}");
    });
}

#[test]
fn c6_a_cancel_overtakes_its_command_and_keeps_the_session() {
    on_every_shell(|rpc, session, shell| {
        rpc.run(session, "kept=1");
        assert_eq!(
            rpc.call_error_code("exec.cancel", json!({ "session_id": session })),
            "INVALID_PARAMS",
            "{shell}"
        );
        let running = rpc
            .send("exec.run", json!({ "session_id": session, "command": "echo begun; while :; do :; done" }));
        let busy = rpc.call_error_code("exec.run", json!({ "session_id": session, "command": "true" }));
        assert_eq!(busy, "SESSION_BUSY", "{shell}");
        assert_eq!(
            rpc.call_ok("exec.cancel", json!({ "session_id": session })),
            json!({ "cancelled": true })
        );
        let result = rpc.response(running).unwrap();
        assert_eq!(
            (result["cancelled"].as_bool(), result["timed_out"].as_bool()),
            (Some(true), Some(false)),
            "{shell}"
        );
        assert_eq!(rpc.stdout(session, "echo $kept"), "1\n", "{shell}");
    });
}

#[test]
fn variables_for_one_command_are_gone_in_the_next() {
    on_every_shell(|rpc, session, shell| {
        let command = "cd /usr; printf '%s' \"$GREETING\"; sh -c 'printf \"%s\" \"$GREETING\"'";
        let params =
            json!({ "session_id": session, "command": command, "env": { "GREETING": "it's \"$me\"" } });
        assert_eq!(rpc.call_ok("exec.run", params)["stdout"], "it's \"$me\"it's \"$me\"", "{shell}");
        assert_eq!(rpc.stdout(session, "pwd; echo \"<$GREETING>\""), "/usr\n<>\n", "{shell}");
    });
}

#[test]
fn a_command_of_a_megabyte_arrives_whole() {
    on_every_shell(|rpc, session, shell| {
        let text = "x".repeat(1 << 20);
        assert_eq!(rpc.stdout(session, &format!("v='{text}'; echo ${{#v}}")), "1048576\n", "{shell}");
    });
}

#[test]
fn c10_gigabytes_of_output_are_capped_counted_and_do_not_fill_anything() {
    let home = home();
    let mut rpc = RpcTestClient::with_env(&home, &[("ABIDE_TERMINAL_SPOOL_BYTES", "1048576")]);
    let session = rpc.create("bash");
    let result = rpc.run(&session, "head -c 1073741824 /dev/zero; echo end >&2");
    assert_eq!(result["truncated"]["stdout"], (1u64 << 30) - (1 << 20));
    assert_eq!(result["stderr"], "end\n");
    let spooled: u64 = std::fs::read_dir(home.path().join("keepers").join(&session))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(spooled < 2 << 20, "{spooled} bytes are kept");
    let early = rpc.call_ok(
        "exec.output",
        json!({ "session_id": session, "exec_id": result["exec_id"], "offset": 0, "limit": 10 }),
    );
    assert!(early["dropped"].as_u64().unwrap() > 0 && early["offset"] == early["dropped"], "{early}");
}
