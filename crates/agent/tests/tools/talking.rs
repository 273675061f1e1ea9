//! Programs that are not shells, and the detection of the end of their answers.

use abide_agent::definition::ToolDefinition;
use abide_agent::tool::{ToolSessionChange, ToolStatus};
use serde_json::json;

use crate::bench::{WorkbenchFixture, is_there, on_terminal, session};

#[test]
fn python_answers_and_remembers_and_its_prompts_are_left_out() {
    let mut bench = WorkbenchFixture::new();
    // Without `-i`, Python reads its whole input before it executes anything.
    let python = session("python", &["python3", "-q"]);
    let seen = bench.call(&python, json!({"text": "x = 20"}));
    assert_eq!(seen.text.lines().count(), 1, "{}", seen.text);
    assert_eq!(bench.call(&python, json!({"text": "x + 1"})).text, "21");
    assert_eq!(bench.call(&python, json!({"text": "x = x + 1"})).text, "(no output)");
    let seen = bench.call(&python, json!({"text": "1/0"}));
    assert!(seen.text.ends_with("ZeroDivisionError: division by zero"), "{}", seen.text);
    let seen = bench.call(&python, json!({"text": "def f(n):\n    return n * 2\n\nf(x)"}));
    assert_eq!(seen.text, "42");
    assert_eq!(bench.call(&python, json!({"text": "input('name? ')"})).text, "name?");
    assert_eq!(bench.call(&python, json!({"text": "Ada"})).text, "'Ada'");
}

#[test]
fn a_program_that_is_silent_at_work_is_waited_for_and_not_guessed_about() {
    let mut bench = WorkbenchFixture::new();
    let python = session("python", &["python3", "-i", "-q"]);
    bench.call(&python, json!({}));
    // Longer than the silence that counts as the end of an answer; also in a thread other than the first.
    let seen = bench.call(&python, json!({"text": "import time; time.sleep(4); print('slept')"}));
    assert_eq!(seen.text, "slept");
    let threads = "import threading; t = threading.Thread(target=lambda: time.sleep(3)); t.start(); t.join(); print('joined')";
    assert_eq!(bench.call(&python, json!({"text": threads})).text, "joined");
    let child = "import subprocess; subprocess.run(['sh', '-c', 'sleep 3; echo child'])";
    assert!(bench.call(&python, json!({"text": child})).text.starts_with("child\n"));
}

#[test]
fn a_program_still_at_work_when_the_time_is_over_goes_on_and_is_heard_later() {
    let mut bench = WorkbenchFixture::new();
    let python = ToolDefinition { timeout_sec: Some(1), ..session("python", &["python3", "-i", "-q"]) };
    bench.call(&python, json!({}));
    let seen = bench
        .call(&python, json!({"text": "import time; print('a', flush=True); time.sleep(2.5); print('b')"}));
    assert!(seen.timed_out && seen.status == ToolStatus::TimedOut, "{}", seen.text);
    assert!(seen.text.starts_with("a\n[the program is still at work after 1 s"), "{}", seen.text);
    let patient = ToolDefinition { timeout_sec: Some(30), ..python };
    assert_eq!(bench.call(&patient, json!({})).text, "b");
}

#[test]
fn a_program_that_ends_by_itself_ends_its_session() {
    let mut bench = WorkbenchFixture::new();
    let python = session("python", &["python3", "-i", "-q"]);
    bench.call(&python, json!({}));
    let seen = bench.call(&python, json!({"text": "print('bye', flush=True); raise SystemExit(7)"}));
    assert!(seen.text.starts_with("bye\n") && seen.text.contains("has ended; exit code 7]"), "{}", seen.text);
    assert_eq!((seen.session_event, seen.exit_code), (Some(ToolSessionChange::Ended), Some(7)));
    assert_eq!(bench.workbench.sessions(), []);
    let seen = bench.call(&session("quick", &["true"]), json!({"text": "x"}));
    assert!(
        seen.text.contains("has ended; exit code 0]") && seen.session_event == Some(ToolSessionChange::Ended),
        "{}",
        seen.text
    );
}

#[test]
fn node_waits_for_many_things_and_is_known_by_its_prompt() {
    if !is_there("node") {
        return;
    }
    let mut bench = WorkbenchFixture::new();
    let node = session("node", &["node"]);
    let seen = bench.call(&node, json!({"text": "let x = 20"}));
    assert!(seen.text.contains("undefined"), "{}", seen.text);
    assert_eq!(bench.call(&node, json!({"text": "x + 1"})).text, "21");
    let slow = "await new Promise(done => setTimeout(() => done('slept'), 1500))";
    assert_eq!(bench.call(&node, json!({"text": slow})).text, "'slept'");
    assert_eq!(
        bench.call(&node, json!({"text": "for (let i = 0; i < 2e9; i++); 'counted'"})).text,
        "'counted'"
    );
}

#[test]
fn readers_of_lines_answer_line_by_line() {
    let mut bench = WorkbenchFixture::new();
    if is_there("sqlite3") {
        let sqlite = session("sqlite", &["sqlite3"]);
        bench.call(&sqlite, json!({"text": "create table t(a); insert into t values (1), (2);"}));
        assert_eq!(bench.call(&sqlite, json!({"text": "select sum(a) from t;"})).text, "3");
    }
    let cat = session("cat", &["cat"]);
    bench.call(&cat, json!({}));
    assert_eq!(bench.call(&cat, json!({"text": "one\ntwo"})).text, "one\ntwo");
    let big = "x".repeat(300_000);
    let seen = bench.call(&cat, json!({"text": big}));
    assert!(seen.text.contains("of 300001 bytes left out"), "{}", seen.text.replace('x', ""));
}

#[test]
fn on_a_terminal_the_screen_is_seen_when_the_program_reads_again() {
    let mut bench = WorkbenchFixture::new();
    let python = on_terminal(session("python", &["python3", "-q"]));
    bench.call(&python, json!({}));
    let seen = bench.call(&python, json!({"text": "import time; time.sleep(2); print('on', 'screen')"}));
    assert!(seen.text.contains("\non screen\n>>>\n[screen of 24 rows"), "{}", seen.text);
    let seen = bench.call(&python, json!({"text": "while True: pass"}));
    assert!(seen.timed_out || seen.text.contains("..."), "{}", seen.text);
    let seen = bench.call(&python, json!({"text": "\u{3}"}));
    assert!(seen.text.contains("KeyboardInterrupt"), "{}", seen.text);
    if is_there("node") {
        let node = on_terminal(session("node", &["node"]));
        bench.call(&node, json!({}));
        let seen = bench.call(&node, json!({"text": "6 * 7"}));
        assert!(seen.text.contains("\n42\n>\n") && !seen.text.contains("guessed"), "{}", seen.text);
    }
}

#[test]
fn output_between_calls_is_seen_at_the_next_one() {
    let mut bench = WorkbenchFixture::new();
    let python = session("python", &["python3", "-i", "-q"]);
    let ticking = "import threading, os, time\n\
                   def tick():\n\
                   \x20   while not os.path.exists('go'): time.sleep(0.01)\n\
                   \x20   print('tick', flush=True)\n\n\
                   t = threading.Thread(target=tick); t.start()";
    bench.call(&python, json!({"text": ticking}));
    std::fs::write(bench.folder.path().join("go"), "").unwrap();
    assert_eq!(bench.call(&python, json!({"text": "t.join()"})).text, "tick");
}

#[test]
fn a_program_that_waits_for_several_things_without_a_prompt_is_guessed_about_and_that_is_said() {
    let mut bench = WorkbenchFixture::new();
    let program = "import selectors, sys, os\n\
                   s = selectors.DefaultSelector()\n\
                   s.register(0, selectors.EVENT_READ)\n\
                   while True:\n    if s.select(60): print('got', os.read(0, 99), flush=True)";
    let waiting = session("waiting", &["python3", "-c", program]);
    bench.call(&waiting, json!({}));
    let seen = bench.call(&waiting, json!({"text": "x"}));
    assert!(
        seen.text.starts_with("got b'x\\n'\n[the program has been silent for a while, so it is guessed"),
        "{}",
        seen.text
    );
}

#[test]
fn the_first_call_of_a_session_shows_its_output_once_as_later_calls_do() {
    let reader = ["sh", "-c", "while read -r line; do echo \"got $line\"; done"];
    let asks =
        ["sh", "-c", "printf 'name? '; while read -r line; do echo \"got $line\"; printf 'name? '; done"];
    for (command, text, expected) in [
        (&["python3", "-i", "-q"][..], "print(1234*5678)", "7006652"),
        (&["python3"], "print(1234*5678)", "7006652"),
        (&["node", "-i"], "console.log(1234*5678)", "7006652"),
        (&["sqlite3"], "select 1234*5678;", "7006652"),
        (&["sqlite3", "-interactive"], "select 1234*5678;", "7006652"),
        (&["bc"], "1234*5678", "7006652"),
        (&reader, "x", "got x"),
        (&asks, "x", "got x"),
    ] {
        if !is_there(command[0]) {
            continue;
        }
        for started_before in [false, true] {
            let mut bench = WorkbenchFixture::new();
            let tool = session("tool", command);
            if started_before {
                bench.call(&tool, json!({}));
            }
            for call in 1..4 {
                let seen = bench.call(&tool, json!({"text": text}));
                let printed = String::from_utf8(bench.written("stdout")).unwrap();
                assert_eq!(seen.text.matches(expected).count(), 1, "{command:?}, call {call}: {}", seen.text);
                assert_eq!(printed.matches(expected).count(), 1, "{command:?}, call {call}: {printed}");
            }
        }
    }
    for command in [&["python3", "-q"][..], &["node"]] {
        if !is_there(command[0]) {
            continue;
        }
        let mut bench = WorkbenchFixture::new();
        let code = if command[0] == "node" { "'onc' + 'e'" } else { "print('onc' + 'e')" };
        bench.call(&on_terminal(session("tool", command)), json!({"text": code}));
        let printed = String::from_utf8_lossy(&bench.written("stdout")).into_owned();
        assert_eq!(printed.matches("\nonce").count() + printed.matches("'once'").count(), 1, "{printed}");
    }
}

#[test]
fn output_that_looks_like_a_prompt_is_shown_as_it_was_printed() {
    let mut bench = WorkbenchFixture::new();
    let python = session("python", &["python3", "-i", "-q"]);
    let mut seen = |code: &str| bench.call(&python, json!({"text": code})).text;
    assert!(seen("print('>>> import this')").ends_with("\n>>> import this"));
    for (code, expected) in [
        ("print('>>> import this')", ">>> import this"),
        ("print('... more')", "... more"),
        ("print('a >>> ', end='')", "a >>>"),
        ("print('>>> ')", ">>>"),
        ("for n in range(2):\n    print('>>> ', n)\n\n", ">>>  0\n>>>  1"),
        ("import sys\nx = 1\nprint('>>> three lines')", ">>> three lines"),
        ("n = sys.stderr.write('>>> on stderr\\n')", "[stderr]\n>>> on stderr"),
        ("n = sys.stderr.write('>>> ')", "[stderr]\n>>>"),
        (
            "n = sys.stderr.write('>>> first\\n'); n = sys.stderr.write('... second\\n')",
            "[stderr]\n>>> first\n... second",
        ),
        ("y = 2", "(no output)"),
    ] {
        assert_eq!(seen(code), expected, "{code}");
    }
    if is_there("node") {
        let mut bench = WorkbenchFixture::new();
        let node = session("node", &["node", "-i"]);
        bench.call(&node, json!({}));
        assert_eq!(bench.call(&node, json!({"text": "console.log('> quoted')"})).text, "> quoted\nundefined");
        assert_eq!(bench.call(&node, json!({"text": "process.stdout.write('> ')"})).text, "> true");
        let seen = bench.call(&node, json!({"text": "console.error('> on stderr')"}));
        assert_eq!(seen.text, "undefined\n[stderr]\n> on stderr");
    }
}

#[test]
fn what_is_printed_late_for_a_call_is_not_taken_for_the_answer_to_the_next() {
    let mut bench = WorkbenchFixture::new();
    let python = ToolDefinition { timeout_sec: Some(1), ..session("python", &["python3", "-i", "-q"]) };
    let wait = "import os, time\ndef late():\n  while not os.path.exists('go'): time.sleep(0.01)\n  print('late')\n\n";
    bench.call(&python, json!({"text": wait}));
    assert!(bench.call(&python, json!({"text": "late()"})).timed_out);
    // The program is busy, so it reads this input later.
    let seen = bench.call(&python, json!({"text": "print('next')"}));
    assert!(seen.timed_out, "{}", seen.text);
    assert!(
        seen.text.starts_with("[the program was still at work on an earlier call (.abide/executions/act_2)"),
        "{}",
        seen.text
    );
    std::fs::write(bench.folder.path().join("go"), "").unwrap();
    let patient = ToolDefinition { timeout_sec: Some(30), ..python.clone() };
    assert_eq!(bench.call(&patient, json!({})).text, "late\nnext");
    assert_eq!(bench.call(&patient, json!({"text": "print('clear')"})).text, "clear");
    // The first call has finished in the meantime: its output is shown as its own, and stored in its own folder.
    std::fs::remove_file(bench.folder.path().join("go")).unwrap();
    assert!(bench.call(&python, json!({"text": "late(); n = open('done', 'w').close()"})).timed_out);
    std::fs::write(bench.folder.path().join("go"), "").unwrap();
    let done = bench.folder.path().join("done");
    abide_testkit::wait::until("the earlier call has finished", || done.exists());
    let seen = bench.call(&patient, json!({"text": "print('next')"}));
    let (before, answer) = seen.text.split_once("[end of the earlier call's output]\n").expect(&seen.text);
    assert!(
        before.contains("(.abide/executions/act_6) printed this after its result was given:]\nlate\n"),
        "{before}"
    );
    assert_eq!(answer, "next");
    assert_eq!(bench.written("stdout"), b"next\n");
    assert_eq!(std::fs::read(bench.state().join("executions/act_6/stdout")).unwrap(), b"late\n");
}
