//! The parrot as a real child process: its output, its memory, and the single execution of each instruction.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use abide_testkit::environment;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Creates a folder with a workspace and a home for sessions.
fn place() -> TempDir {
    let place = tempfile::tempdir().expect("a folder can be made");
    fs::create_dir(place.path().join("workspace")).expect("a new folder is empty");
    place
}

fn file(place: &TempDir, name: &str) -> String {
    fs::read_to_string(place.path().join("workspace").join(name)).unwrap_or_default()
}

struct ParrotChild {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ParrotChild {
    fn start(place: &TempDir, arguments: &[&str]) -> Self {
        Self::start_in(&place.path().join("workspace"), place, arguments)
    }

    fn start_in(workspace: &Path, place: &TempDir, arguments: &[&str]) -> Self {
        let mut child = environment::abide(env!("CARGO_BIN_EXE_abide"))
            .arg("__parrot")
            .args(arguments)
            .current_dir(workspace)
            .env_remove("PARROT_HOME")
            .env("ABIDE_HOME", place.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built for this test");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { input: child.stdin.take(), output, child }
    }

    fn tell(&mut self, line: &Value) {
        writeln!(self.input.as_mut().expect("the input is open"), "{line}").expect("the parrot listens");
    }

    fn prompt(&mut self, text: &str) {
        self.tell(&json!({ "type": "prompt", "text": text }));
    }

    /// Reads the next line; `None` at the end of the output.
    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("what it prints is text");
        (!line.is_empty()).then(|| serde_json::from_str(&line).expect("every line is JSON"))
    }

    /// Reads up to the next line of that type.
    fn hear_of(&mut self, kind: &str) -> Value {
        loop {
            let line = self.hear().unwrap_or_else(|| panic!("it ended without {kind}"));
            if line["type"] == kind {
                return line;
            }
        }
    }

    /// Reads the rest of the output, standard error and the exit code.
    fn end(mut self) -> (Vec<Value>, String, Option<i32>) {
        drop(self.input.take());
        let mut said = vec![];
        while let Some(line) = self.hear() {
            said.push(line);
        }
        let output = self.child.wait_with_output().expect("the child is ours");
        (said, String::from_utf8(output.stderr).expect("complaints are text"), output.status.code())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the child is there");
    }
}

/// Runs one turn from its prompt to its exit, and returns the text of its result.
fn turn(place: &TempDir, arguments: &[&str], prompt: &str) -> String {
    let mut parrot = ParrotChild::start(place, arguments);
    parrot.prompt(prompt);
    let result = parrot.hear_of("result");
    assert_eq!(parrot.end().2, Some(0));
    result["text"].as_str().expect("a result has a text").to_owned()
}

/// Returns the error message of a parrot that refuses to start.
fn refused(place: &TempDir, arguments: &[&str]) -> String {
    let (said, complaint, code) = ParrotChild::start(place, arguments).end();
    assert_eq!((said, code), (vec![], Some(1)));
    complaint
}

#[test]
fn a_script_goes_on_behind_its_question_in_another_process() {
    let place = place();
    let asked = turn(
        &place,
        &["--session-id", "s1"],
        "say one\nappend log 1\nask confirm Go on? | yes\nappend log $reply\nsay two",
    );
    assert!(asked.starts_with("one\n```abide-question\n"), "{asked}");
    assert_eq!(file(&place, "log"), "1\n");
    assert_eq!(turn(&place, &["--resume", "s1"], "crash"), "two", "a reply is no order");
    assert_eq!(file(&place, "log"), "1\ncrash\n");
    assert_eq!(
        turn(&place, &["--resume", "s1"], "say last was $reply"),
        "last was crash",
        "no question is open"
    );
}

#[test]
fn a_reply_after_which_nothing_is_left_is_heard() {
    let place = place();
    turn(&place, &["--session-id", "s1"], "ask open_text Who?");
    assert_eq!(turn(&place, &["--resume", "s1"], "me\nand you"), "heard: me\nand you");
}

#[test]
fn what_was_added_to_the_prompt_is_no_order() {
    let place = place();
    let prompt = "say mine\nhello\n\n<abide-runtime>\nsay not mine\n</abide-runtime>";
    assert_eq!(turn(&place, &[], prompt), "mine\nheard: hello");
}

#[test]
fn the_session_is_announced_first_and_under_the_name_that_was_chosen() {
    let place = place();
    for arguments in [&["--session-id", "mine"], &["--resume", "mine"]] {
        let mut parrot = ParrotChild::start(&place, arguments);
        parrot.prompt("say x");
        assert_eq!(parrot.hear(), Some(json!({ "type": "session", "id": "mine" })));
        parrot.end();
    }
    let mut mute = ParrotChild::start(&place, &[]);
    mute.prompt("say x\nmute-session");
    assert!(mute.end().0.iter().all(|line| line["type"] != "session"));
}

#[test]
fn a_session_that_is_not_there_is_refused() {
    let place = place();
    assert!(refused(&place, &["--resume", "nobody"]).contains("not found"));
    assert!(refused(&place, &["--resume", "../nobody"]).contains("no session id"));
    turn(&place, &["--session-id", "lost"], "lose-session\nask confirm Go?");
    assert!(refused(&place, &["--resume", "lost"]).contains("is lost"));
    turn(&place, &["--session-id", "taken"], "say x");
    assert!(refused(&place, &["--session-id", "taken"]).contains("already exists"));
    let elsewhere = ParrotChild::start_in(place.path(), &place, &["--resume", "taken"]);
    assert!(elsewhere.end().1.contains("belongs to"));
    let mut working = ParrotChild::start(&place, &["--resume", "taken"]);
    working.prompt("gate Wait?");
    working.hear_of("gate");
    assert!(refused(&place, &["--resume", "taken"]).contains("in use"));
}

#[test]
fn no_order_is_carried_out_twice_wherever_it_is_killed() {
    let place = place();
    let mut arguments = ["--session-id", "s1"];
    for round in 1..=5 {
        let mut parrot = ParrotChild::start(&place, &arguments);
        parrot.prompt(&format!(
            "append log {round}a\nprogress now\ngate Wait?\nappend log {round}b\nask confirm Go?"
        ));
        parrot.hear_of(if round % 2 == 0 { "progress" } else { "gate" });
        parrot.child.kill().unwrap();
        parrot.end();
        arguments = ["--resume", "s1"];
    }
    assert_eq!(
        turn(&place, &arguments, "append log end\nsay alive"),
        "alive",
        "what was killed is forgotten"
    );
    assert_eq!(file(&place, "log"), "1a\n2a\n3a\n4a\n5a\nend\n");
    let mut crashing = ParrotChild::start(&place, &arguments);
    crashing.prompt("append log before\ncrash\nappend log after");
    assert_eq!(crashing.end().2, None, "killed by a signal");
    assert!(file(&place, "log").ends_with("before\n"));
}

#[test]
fn a_gate_waits_for_its_own_answer() {
    let place = place();
    let mut parrot = ParrotChild::start(&place, &[]);
    parrot.prompt("gate Deploy?\nsay heard $reply");
    let gate = parrot.hear_of("gate");
    assert_eq!(gate["prompt"], "Deploy?");
    parrot.tell(&json!({ "type": "answer", "gate": "another", "text": "no", "approved": false }));
    parrot.tell(&json!({ "type": "steer", "text": "say steered" }));
    parrot.tell(&json!({ "type": "answer", "gate": gate["id"], "text": "sure", "approved": true }));
    assert_eq!(parrot.hear_of("progress")["text"], "approved: Deploy?");
    assert_eq!(parrot.hear_of("result")["text"], "heard sure\nsteered");
    let mut forsaken = ParrotChild::start(&place, &[]);
    forsaken.prompt("gate Deploy?");
    forsaken.hear_of("gate");
    let (said, _, code) = forsaken.end();
    assert_eq!((said.last().map(|line| line["type"].clone()), code), (Some(json!("failed")), Some(1)));
}

#[test]
fn an_interrupted_turn_leaves_a_usable_session() {
    let place = place();
    for (round, arguments) in [["--session-id", "s1"], ["--resume", "s1"]].iter().enumerate() {
        let mut parrot = ParrotChild::start(&place, arguments);
        parrot.prompt("progress works\nsleep 600\nappend log never");
        parrot.hear_of("progress");
        if round == 0 {
            parrot.tell(&json!({ "type": "interrupt" }));
        } else {
            parrot.signal(rustix::process::Signal::INT);
        }
        parrot.hear_of("interrupted");
        assert_eq!(parrot.end().2, Some(130));
    }
    assert_eq!(turn(&place, &["--resume", "s1"], "say here"), "here");
    assert_eq!(file(&place, "log"), "");
}

#[test]
fn a_held_parrot_takes_one_prompt_after_the_other() {
    let place = place();
    let mut parrot = ParrotChild::start(&place, &["--sticky"]);
    parrot.prompt("ask confirm Go?\nsay $reply\ngate Sure?");
    parrot.hear_of("result");
    parrot.prompt("well");
    parrot.hear_of("gate");
    parrot.tell(&json!({ "type": "interrupt" }));
    parrot.hear_of("interrupted");
    // This interrupt comes after the turn; it must not stop the next one.
    parrot.tell(&json!({ "type": "interrupt" }));
    parrot.prompt("say a");
    parrot.prompt("say b");
    let (said, _, code) = parrot.end();
    let results: Vec<_> =
        said.iter().filter(|line| line["type"] == "result").map(|line| &line["text"]).collect();
    assert_eq!((results, code), (vec![&json!("a"), &json!("b")], Some(0)));
}

#[test]
fn failing_is_said_and_ends_with_1() {
    let place = place();
    for arguments in [&[] as &[&str], &["--sticky"]] {
        let mut parrot = ParrotChild::start(&place, arguments);
        parrot.prompt("say almost\nfail no luck");
        assert_eq!(parrot.hear_of("failed")["message"], "no luck");
        assert_eq!(parrot.end().2, Some(1));
    }
}

#[test]
fn files_stay_inside_the_workspace_and_the_sandbox() {
    let place = place();
    std::os::unix::fs::symlink("..", place.path().join("workspace/up")).unwrap();
    std::os::unix::fs::symlink("../escaped", place.path().join("workspace/link")).unwrap();
    for path in ["../escaped", "/tmp/../escaped", "up/escaped", "link", "sub/../../escaped", ".."] {
        for order in ["write", "append"] {
            let mut parrot = ParrotChild::start(&place, &[]);
            parrot.prompt(&format!("{order} {path} x"));
            parrot.hear_of("failed");
            parrot.end();
        }
    }
    let mut reader = ParrotChild::start(&place, &["--sandbox", "read-only"]);
    reader.prompt("write inside x");
    assert!(reader.hear_of("failed")["message"].as_str().unwrap().contains("read-only"));
    assert!(!place.path().join("escaped").exists());
    turn(&place, &["--sandbox", "workspace-write"], "write a/b/c.txt one\nappend a/b/c.txt two\nwrite plain");
    assert_eq!((file(&place, "a/b/c.txt").as_str(), file(&place, "plain").as_str()), ("one\ntwo\n", "\n"));
}

#[test]
fn a_hundred_megabytes_are_printed_in_bounded_memory() {
    let place = place();
    let mut parrot = ParrotChild::start(&place, &[]);
    parrot.prompt("print 100000000\ngate Wait?\nsay done");
    let mut bytes = 0;
    loop {
        let line = parrot.hear().unwrap();
        match line["type"].as_str() {
            Some("output") => bytes += line["text"].as_str().unwrap().len(),
            Some("gate") => break,
            _ => {}
        }
    }
    assert_eq!(bytes, 100_000_000);
    let status = fs::read_to_string(format!("/proc/{}/status", parrot.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 50_000, "{kilobytes} kB");
    parrot.child.kill().unwrap();
    parrot.end();
}

#[test]
fn who_hangs_is_deaf_to_everything_but_sigkill() {
    let place = place();
    let mut parrot = ParrotChild::start(&place, &["--session-id", "s1"]);
    parrot.prompt("hang");
    parrot.hear_of("progress");
    parrot.signal(rustix::process::Signal::TERM);
    parrot.signal(rustix::process::Signal::INT);
    parrot.tell(&json!({ "type": "interrupt" }));
    // The process ignores both signals and the interrupt; only the SIGKILL below ends it.
    assert!(parrot.child.try_wait().unwrap().is_none());
    parrot.signal(rustix::process::Signal::KILL);
    let status = parrot.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "not by an earlier signal");
    assert_eq!(turn(&place, &["--resume", "s1"], "say back"), "back");
}
