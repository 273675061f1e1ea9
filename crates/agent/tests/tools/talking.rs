//! Programs that are not shells, and the detection of the end of their answers.

use abide_agent::definition::ToolDefinition;
use abide_agent::tool::{ToolSessionChange, ToolStatus};
use serde_json::json;

use crate::fixture::{WorkbenchFixture, is_installed, on_terminal, stateful_tool};

#[test]
fn python_keeps_state_and_its_prompts_are_hidden() {
    let mut fixture = WorkbenchFixture::new();
    // Without `-i`, Python reads its whole input before it executes anything.
    let python = stateful_tool("python", &["python3", "-q"]);
    let result = fixture.call(&python, json!({"text": "x = 20"}));
    assert_eq!(result.text.lines().count(), 1, "{}", result.text);
    assert_eq!(fixture.call(&python, json!({"text": "x + 1"})).text, "21");
    assert_eq!(fixture.call(&python, json!({"text": "x = x + 1"})).text, "(no output)");
    let result = fixture.call(&python, json!({"text": "1/0"}));
    assert!(result.text.ends_with("ZeroDivisionError: division by zero"), "{}", result.text);
    let result = fixture.call(&python, json!({"text": "def f(n):\n    return n * 2\n\nf(x)"}));
    assert_eq!(result.text, "42");
    assert_eq!(fixture.call(&python, json!({"text": "input('name? ')"})).text, "name?");
    assert_eq!(fixture.call(&python, json!({"text": "Ada"})).text, "'Ada'");
}

#[test]
fn a_silent_busy_program_is_awaited_without_guessing() {
    let mut fixture = WorkbenchFixture::new();
    let python = stateful_tool("python", &["python3", "-i", "-q"]);
    fixture.call(&python, json!({}));
    // Longer than the silence that counts as the end of an answer; also in a thread other than the first.
    let result = fixture.call(&python, json!({"text": "import time; time.sleep(4); print('slept')"}));
    assert_eq!(result.text, "slept");
    let threads = "import threading; t = threading.Thread(target=lambda: time.sleep(3)); t.start(); t.join(); print('joined')";
    assert_eq!(fixture.call(&python, json!({"text": threads})).text, "joined");
    let child = "import subprocess; subprocess.run(['sh', '-c', 'sleep 3; echo child'])";
    assert!(fixture.call(&python, json!({"text": child})).text.starts_with("child\n"));
}

#[test]
fn a_busy_program_continues_after_the_timeout_and_its_output_follows() {
    let mut fixture = WorkbenchFixture::new();
    let python = ToolDefinition { timeout_sec: Some(1), ..stateful_tool("python", &["python3", "-i", "-q"]) };
    fixture.call(&python, json!({}));
    let result = fixture
        .call(&python, json!({"text": "import time; print('a', flush=True); time.sleep(2.5); print('b')"}));
    assert!(result.timed_out && result.status == ToolStatus::TimedOut, "{}", result.text);
    assert!(result.text.starts_with("a\n[the program is still working after 1 s"), "{}", result.text);
    let patient = ToolDefinition { timeout_sec: Some(30), ..python };
    assert_eq!(fixture.call(&patient, json!({})).text, "b");
}

#[test]
fn a_program_that_ends_by_itself_ends_its_session() {
    let mut fixture = WorkbenchFixture::new();
    let python = stateful_tool("python", &["python3", "-i", "-q"]);
    fixture.call(&python, json!({}));
    let result = fixture.call(&python, json!({"text": "print('bye', flush=True); raise SystemExit(7)"}));
    assert!(
        result.text.starts_with("bye\n") && result.text.contains("has ended; exit code 7]"),
        "{}",
        result.text
    );
    assert_eq!((result.session_event, result.exit_code), (Some(ToolSessionChange::Ended), Some(7)));
    assert_eq!(fixture.workbench.sessions(), []);
    let result = fixture.call(&stateful_tool("quick", &["true"]), json!({"text": "x"}));
    assert!(
        result.text.contains("has ended; exit code 0]")
            && result.session_event == Some(ToolSessionChange::Ended),
        "{}",
        result.text
    );
}

#[test]
fn node_is_recognised_as_idle_by_its_prompt() {
    if !is_installed("node") {
        return;
    }
    let mut fixture = WorkbenchFixture::new();
    let node = stateful_tool("node", &["node"]);
    let result = fixture.call(&node, json!({"text": "let x = 20"}));
    assert!(result.text.contains("undefined"), "{}", result.text);
    assert_eq!(fixture.call(&node, json!({"text": "x + 1"})).text, "21");
    let slow = "await new Promise(done => setTimeout(() => done('slept'), 1500))";
    assert_eq!(fixture.call(&node, json!({"text": slow})).text, "'slept'");
    assert_eq!(
        fixture.call(&node, json!({"text": "for (let i = 0; i < 2e9; i++); 'counted'"})).text,
        "'counted'"
    );
}

#[test]
fn readers_of_lines_answer_line_by_line() {
    let mut fixture = WorkbenchFixture::new();
    if is_installed("sqlite3") {
        let sqlite = stateful_tool("sqlite", &["sqlite3"]);
        fixture.call(&sqlite, json!({"text": "create table t(a); insert into t values (1), (2);"}));
        assert_eq!(fixture.call(&sqlite, json!({"text": "select sum(a) from t;"})).text, "3");
    }
    let cat = stateful_tool("cat", &["cat"]);
    fixture.call(&cat, json!({}));
    assert_eq!(fixture.call(&cat, json!({"text": "one\ntwo"})).text, "one\ntwo");
    let big = "x".repeat(300_000);
    let result = fixture.call(&cat, json!({"text": big}));
    assert!(result.text.contains("of 300001 bytes left out"), "{}", result.text.replace('x', ""));
}

#[test]
fn the_screen_is_returned_when_a_terminal_program_reads_again() {
    let mut fixture = WorkbenchFixture::new();
    let python = on_terminal(stateful_tool("python", &["python3", "-q"]));
    fixture.call(&python, json!({}));
    let result = fixture.call(&python, json!({"text": "import time; time.sleep(2); print('on', 'screen')"}));
    assert!(result.text.contains("\non screen\n>>>\n[screen of 24 rows"), "{}", result.text);
    let result = fixture.call(&python, json!({"text": "while True: pass"}));
    assert!(result.timed_out || result.text.contains("..."), "{}", result.text);
    let result = fixture.call(&python, json!({"text": "\u{3}"}));
    assert!(result.text.contains("KeyboardInterrupt"), "{}", result.text);
    if is_installed("node") {
        let node = on_terminal(stateful_tool("node", &["node"]));
        fixture.call(&node, json!({}));
        let result = fixture.call(&node, json!({"text": "6 * 7"}));
        assert!(result.text.contains("\n42\n>\n") && !result.text.contains("probably"), "{}", result.text);
    }
}

#[test]
fn output_between_calls_is_returned_by_the_next_call() {
    let mut fixture = WorkbenchFixture::new();
    let python = stateful_tool("python", &["python3", "-i", "-q"]);
    let ticking = "import threading, os, time\n\
                   def tick():\n\
                   \x20   while not os.path.exists('go'): time.sleep(0.01)\n\
                   \x20   print('tick', flush=True)\n\n\
                   t = threading.Thread(target=tick); t.start()";
    fixture.call(&python, json!({"text": ticking}));
    std::fs::write(fixture.folder.path().join("go"), "").unwrap();
    assert_eq!(fixture.call(&python, json!({"text": "t.join()"})).text, "tick");
}

#[test]
fn a_program_without_a_prompt_is_guessed_idle_and_the_guess_is_reported() {
    let mut fixture = WorkbenchFixture::new();
    let program = "import selectors, sys, os\n\
                   s = selectors.DefaultSelector()\n\
                   s.register(0, selectors.EVENT_READ)\n\
                   while True:\n    if s.select(60): print('got', os.read(0, 99), flush=True)";
    let waiting = stateful_tool("waiting", &["python3", "-c", program]);
    fixture.call(&waiting, json!({}));
    let result = fixture.call(&waiting, json!({"text": "x"}));
    assert!(
        result.text.starts_with("got b'x\\n'\n[the program has been silent for a while, so this is probably"),
        "{}",
        result.text
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
        if !is_installed(command[0]) {
            continue;
        }
        for started_before in [false, true] {
            let mut fixture = WorkbenchFixture::new();
            let tool = stateful_tool("tool", command);
            if started_before {
                fixture.call(&tool, json!({}));
            }
            for call in 1..4 {
                let result = fixture.call(&tool, json!({"text": text}));
                let printed = String::from_utf8(fixture.read_call_file("stdout")).unwrap();
                assert_eq!(
                    result.text.matches(expected).count(),
                    1,
                    "{command:?}, call {call}: {}",
                    result.text
                );
                assert_eq!(printed.matches(expected).count(), 1, "{command:?}, call {call}: {printed}");
            }
        }
    }
    for command in [&["python3", "-q"][..], &["node"]] {
        if !is_installed(command[0]) {
            continue;
        }
        let mut fixture = WorkbenchFixture::new();
        let code = if command[0] == "node" { "'onc' + 'e'" } else { "print('onc' + 'e')" };
        fixture.call(&on_terminal(stateful_tool("tool", command)), json!({"text": code}));
        let printed = String::from_utf8_lossy(&fixture.read_call_file("stdout")).into_owned();
        assert_eq!(printed.matches("\nonce").count() + printed.matches("'once'").count(), 1, "{printed}");
    }
}

#[test]
fn output_that_looks_like_a_prompt_is_shown_as_it_was_printed() {
    let mut fixture = WorkbenchFixture::new();
    let python = stateful_tool("python", &["python3", "-i", "-q"]);
    let mut result = |code: &str| fixture.call(&python, json!({"text": code})).text;
    assert!(result("print('>>> import this')").ends_with("\n>>> import this"));
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
        assert_eq!(result(code), expected, "{code}");
    }
    if is_installed("node") {
        let mut fixture = WorkbenchFixture::new();
        let node = stateful_tool("node", &["node", "-i"]);
        fixture.call(&node, json!({}));
        assert_eq!(
            fixture.call(&node, json!({"text": "console.log('> quoted')"})).text,
            "> quoted\nundefined"
        );
        assert_eq!(fixture.call(&node, json!({"text": "process.stdout.write('> ')"})).text, "> true");
        let result = fixture.call(&node, json!({"text": "console.error('> on stderr')"}));
        assert_eq!(result.text, "undefined\n[stderr]\n> on stderr");
    }
}

#[test]
fn late_output_of_a_call_is_not_attributed_to_the_next() {
    let mut fixture = WorkbenchFixture::new();
    let python = ToolDefinition { timeout_sec: Some(1), ..stateful_tool("python", &["python3", "-i", "-q"]) };
    let wait = "import os, time\ndef late():\n  while not os.path.exists('go'): time.sleep(0.01)\n  print('late')\n\n";
    fixture.call(&python, json!({"text": wait}));
    assert!(fixture.call(&python, json!({"text": "late()"})).timed_out);
    // The program is busy, so it reads this input later.
    let result = fixture.call(&python, json!({"text": "print('next')"}));
    assert!(result.timed_out, "{}", result.text);
    assert!(
        result
            .text
            .starts_with("[the program was still working on an earlier call (.abide/executions/act_2)"),
        "{}",
        result.text
    );
    std::fs::write(fixture.folder.path().join("go"), "").unwrap();
    let patient = ToolDefinition { timeout_sec: Some(30), ..python.clone() };
    assert_eq!(fixture.call(&patient, json!({})).text, "late\nnext");
    assert_eq!(fixture.call(&patient, json!({"text": "print('clear')"})).text, "clear");
    // The first call has finished in the meantime: its output is shown as its own, and stored in its own folder.
    std::fs::remove_file(fixture.folder.path().join("go")).unwrap();
    assert!(fixture.call(&python, json!({"text": "late(); n = open('done', 'w').close()"})).timed_out);
    std::fs::write(fixture.folder.path().join("go"), "").unwrap();
    let done = fixture.folder.path().join("done");
    abide_testkit::wait::until("the earlier call has finished", || done.exists());
    let result = fixture.call(&patient, json!({"text": "print('next')"}));
    let (before, answer) =
        result.text.split_once("[end of the earlier call's output]\n").expect(&result.text);
    assert!(
        before.contains("(.abide/executions/act_6) printed this after its result was given:]\nlate\n"),
        "{before}"
    );
    assert_eq!(answer, "next");
    assert_eq!(fixture.read_call_file("stdout"), b"next\n");
    assert_eq!(std::fs::read(fixture.state().join("executions/act_6/stdout")).unwrap(), b"late\n");
}
