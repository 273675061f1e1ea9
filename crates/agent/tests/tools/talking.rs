//! Programs that are no shells: when they have answered, and how that is known.

use abide_agent::definition::Tool;
use abide_agent::tool::{SessionEvent, Status};
use serde_json::json;

use crate::bench::{Bench, is_there, on_terminal, session};

#[test]
fn python_answers_and_remembers_and_its_prompts_are_left_out() {
    let mut bench = Bench::new();
    // Without -i it would read to the end of its input before it does anything.
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
    let mut bench = Bench::new();
    let python = session("python", &["python3", "-i", "-q"]);
    bench.call(&python, json!({}));
    // Longer than any silence that would be taken for an end; also in a thread that is not the first.
    let seen = bench.call(&python, json!({"text": "import time; time.sleep(4); print('slept')"}));
    assert_eq!(seen.text, "slept");
    let threads = "import threading; t = threading.Thread(target=lambda: time.sleep(3)); t.start(); t.join(); print('joined')";
    assert_eq!(bench.call(&python, json!({"text": threads})).text, "joined");
    let child = "import subprocess; subprocess.run(['sh', '-c', 'sleep 3; echo child'])";
    assert!(bench.call(&python, json!({"text": child})).text.starts_with("child\n"));
}

#[test]
fn a_program_still_at_work_when_the_time_is_over_goes_on_and_is_heard_later() {
    let mut bench = Bench::new();
    let python = Tool { timeout_sec: Some(1), ..session("python", &["python3", "-i", "-q"]) };
    bench.call(&python, json!({}));
    let seen = bench
        .call(&python, json!({"text": "import time; print('a', flush=True); time.sleep(2.5); print('b')"}));
    assert!(seen.timed_out && seen.status == Status::TimedOut, "{}", seen.text);
    assert!(seen.text.starts_with("a\n[the program is still at work after 1 s"), "{}", seen.text);
    let patient = Tool { timeout_sec: Some(30), ..python };
    assert_eq!(bench.call(&patient, json!({})).text, "b");
}

#[test]
fn a_program_that_ends_by_itself_ends_its_session() {
    let mut bench = Bench::new();
    let python = session("python", &["python3", "-i", "-q"]);
    bench.call(&python, json!({}));
    let seen = bench.call(&python, json!({"text": "print('bye', flush=True); raise SystemExit(7)"}));
    assert!(seen.text.starts_with("bye\n") && seen.text.contains("has ended; exit code 7]"), "{}", seen.text);
    assert_eq!((seen.session_event, seen.exit_code), (Some(SessionEvent::Ended), Some(7)));
    assert_eq!(bench.workbench.sessions(), []);
    let seen = bench.call(&session("quick", &["true"]), json!({"text": "x"}));
    assert!(
        seen.text.contains("has ended; exit code 0]") && seen.session_event == Some(SessionEvent::Ended),
        "{}",
        seen.text
    );
}

#[test]
fn node_waits_for_many_things_and_is_known_by_its_prompt() {
    if !is_there("node") {
        return;
    }
    let mut bench = Bench::new();
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
    let mut bench = Bench::new();
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
    let mut bench = Bench::new();
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
    let mut bench = Bench::new();
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
    let mut bench = Bench::new();
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
