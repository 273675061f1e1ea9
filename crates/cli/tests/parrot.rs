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
fn new_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    fs::create_dir(folder.path().join("workspace")).expect("a new folder is empty");
    folder
}

fn file(folder: &TempDir, name: &str) -> String {
    fs::read_to_string(folder.path().join("workspace").join(name)).unwrap_or_default()
}

struct ParrotChild {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ParrotChild {
    fn start(folder: &TempDir, arguments: &[&str]) -> Self {
        Self::start_in(&folder.path().join("workspace"), folder, arguments)
    }

    fn start_in(workspace: &Path, folder: &TempDir, arguments: &[&str]) -> Self {
        let mut child = environment::abide(env!("CARGO_BIN_EXE_abide"))
            .arg("__parrot")
            .args(arguments)
            .current_dir(workspace)
            .env_remove("PARROT_HOME")
            .env("ABIDE_HOME", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built for this test");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { input: child.stdin.take(), output, child }
    }

    fn send(&mut self, line: &Value) {
        writeln!(self.input.as_mut().expect("the input is open"), "{line}").expect("the parrot listens");
    }

    fn prompt(&mut self, text: &str) {
        self.send(&json!({ "type": "prompt", "text": text }));
    }

    /// Reads the next line; `None` at the end of the output.
    fn next_message(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the output is text");
        (!line.is_empty()).then(|| serde_json::from_str(&line).expect("every line is JSON"))
    }

    /// Reads up to the next line of that type.
    fn wait_for_type(&mut self, kind: &str) -> Value {
        loop {
            let line = self.next_message().unwrap_or_else(|| panic!("it ended without {kind}"));
            if line["type"] == kind {
                return line;
            }
        }
    }

    /// Reads the rest of the output, standard error and the exit code.
    fn wait_for_exit(mut self) -> (Vec<Value>, String, Option<i32>) {
        drop(self.input.take());
        let mut messages = vec![];
        while let Some(line) = self.next_message() {
            messages.push(line);
        }
        let output = self.child.wait_with_output().expect("the child is ours");
        (messages, String::from_utf8(output.stderr).expect("complaints are text"), output.status.code())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the child is there");
    }
}

/// Runs one turn from its prompt to its exit, and returns the text of its result.
fn run_turn(folder: &TempDir, arguments: &[&str], prompt: &str) -> String {
    let mut parrot = ParrotChild::start(folder, arguments);
    parrot.prompt(prompt);
    let result = parrot.wait_for_type("result");
    assert_eq!(parrot.wait_for_exit().2, Some(0));
    result["text"].as_str().expect("a result has a text").to_owned()
}

/// Returns the error message of a parrot that refuses to start.
fn refusal_message(folder: &TempDir, arguments: &[&str]) -> String {
    let (messages, complaint, code) = ParrotChild::start(folder, arguments).wait_for_exit();
    assert_eq!((messages, code), (vec![], Some(1)));
    complaint
}

#[test]
fn a_script_continues_behind_its_question_in_another_process() {
    let folder = new_folder();
    let output = run_turn(
        &folder,
        &["--session-id", "s1"],
        "say one\nappend log 1\nask confirm Continue? | yes\nappend log $reply\nsay two",
    );
    assert!(output.starts_with("one\n```abide-question\n"), "{output}");
    assert_eq!(file(&folder, "log"), "1\n");
    assert_eq!(run_turn(&folder, &["--resume", "s1"], "crash"), "two", "a reply is no order");
    assert_eq!(file(&folder, "log"), "1\ncrash\n");
    assert_eq!(
        run_turn(&folder, &["--resume", "s1"], "say last was $reply"),
        "last was crash",
        "no question is open"
    );
}

#[test]
fn a_reply_without_remaining_script_is_echoed() {
    let folder = new_folder();
    run_turn(&folder, &["--session-id", "s1"], "ask open_text Who?");
    assert_eq!(run_turn(&folder, &["--resume", "s1"], "me\nand you"), "heard: me\nand you");
}

#[test]
fn text_added_by_abide_is_not_executed() {
    let folder = new_folder();
    let prompt = "say mine\nhello\n\n<abide-runtime>\nsay not mine\n</abide-runtime>";
    assert_eq!(run_turn(&folder, &[], prompt), "mine\nheard: hello");
}

#[test]
fn the_session_is_announced_first_and_under_the_name_that_was_chosen() {
    let folder = new_folder();
    for arguments in [&["--session-id", "mine"], &["--resume", "mine"]] {
        let mut parrot = ParrotChild::start(&folder, arguments);
        parrot.prompt("say x");
        assert_eq!(parrot.next_message(), Some(json!({ "type": "session", "id": "mine" })));
        parrot.wait_for_exit();
    }
    let mut mute = ParrotChild::start(&folder, &[]);
    mute.prompt("say x\nmute-session");
    assert!(mute.wait_for_exit().0.iter().all(|line| line["type"] != "session"));
}

#[test]
fn a_session_that_is_not_there_is_refused() {
    let folder = new_folder();
    assert!(refusal_message(&folder, &["--resume", "unknown"]).contains("not found"));
    assert!(refusal_message(&folder, &["--resume", "../unknown"]).contains("not a session id"));
    run_turn(&folder, &["--session-id", "lost"], "lose-session\nask confirm Go?");
    assert!(refusal_message(&folder, &["--resume", "lost"]).contains("is lost"));
    run_turn(&folder, &["--session-id", "taken"], "say x");
    assert!(refusal_message(&folder, &["--session-id", "taken"]).contains("already exists"));
    let elsewhere = ParrotChild::start_in(folder.path(), &folder, &["--resume", "taken"]);
    assert!(elsewhere.wait_for_exit().1.contains("belongs to"));
    let mut working = ParrotChild::start(&folder, &["--resume", "taken"]);
    working.prompt("gate Wait?");
    working.wait_for_type("gate");
    assert!(refusal_message(&folder, &["--resume", "taken"]).contains("in use"));
}

#[test]
fn no_instruction_is_executed_twice_after_a_kill() {
    let folder = new_folder();
    let mut arguments = ["--session-id", "s1"];
    for round in 1..=5 {
        let mut parrot = ParrotChild::start(&folder, &arguments);
        parrot.prompt(&format!(
            "append log {round}a\nprogress now\ngate Wait?\nappend log {round}b\nask confirm Go?"
        ));
        parrot.wait_for_type(if round % 2 == 0 { "progress" } else { "gate" });
        parrot.child.kill().unwrap();
        parrot.wait_for_exit();
        arguments = ["--resume", "s1"];
    }
    assert_eq!(
        run_turn(&folder, &arguments, "append log end\nsay alive"),
        "alive",
        "a killed process is forgotten"
    );
    assert_eq!(file(&folder, "log"), "1a\n2a\n3a\n4a\n5a\nend\n");
    let mut crashing = ParrotChild::start(&folder, &arguments);
    crashing.prompt("append log before\ncrash\nappend log after");
    assert_eq!(crashing.wait_for_exit().2, None, "killed by a signal");
    assert!(file(&folder, "log").ends_with("before\n"));
}

#[test]
fn a_gate_waits_for_its_own_answer() {
    let folder = new_folder();
    let mut parrot = ParrotChild::start(&folder, &[]);
    parrot.prompt("gate Deploy?\nsay heard $reply");
    let gate = parrot.wait_for_type("gate");
    assert_eq!(gate["prompt"], "Deploy?");
    parrot.send(&json!({ "type": "answer", "gate": "another", "text": "no", "approved": false }));
    parrot.send(&json!({ "type": "steer", "text": "say steered" }));
    parrot.send(&json!({ "type": "answer", "gate": gate["id"], "text": "sure", "approved": true }));
    assert_eq!(parrot.wait_for_type("progress")["text"], "approved: Deploy?");
    assert_eq!(parrot.wait_for_type("result")["text"], "heard sure\nsteered");
    let mut forsaken = ParrotChild::start(&folder, &[]);
    forsaken.prompt("gate Deploy?");
    forsaken.wait_for_type("gate");
    let (messages, _, code) = forsaken.wait_for_exit();
    assert_eq!((messages.last().map(|line| line["type"].clone()), code), (Some(json!("failed")), Some(1)));
}

#[test]
fn an_interrupted_turn_leaves_a_usable_session() {
    let folder = new_folder();
    for (round, arguments) in [["--session-id", "s1"], ["--resume", "s1"]].iter().enumerate() {
        let mut parrot = ParrotChild::start(&folder, arguments);
        parrot.prompt("progress works\nsleep 600\nappend log never");
        parrot.wait_for_type("progress");
        if round == 0 {
            parrot.send(&json!({ "type": "interrupt" }));
        } else {
            parrot.signal(rustix::process::Signal::INT);
        }
        parrot.wait_for_type("interrupted");
        assert_eq!(parrot.wait_for_exit().2, Some(130));
    }
    assert_eq!(run_turn(&folder, &["--resume", "s1"], "say here"), "here");
    assert_eq!(file(&folder, "log"), "");
}

#[test]
fn a_held_parrot_takes_one_prompt_after_the_other() {
    let folder = new_folder();
    let mut parrot = ParrotChild::start(&folder, &["--sticky"]);
    parrot.prompt("ask confirm Go?\nsay $reply\ngate Sure?");
    parrot.wait_for_type("result");
    parrot.prompt("well");
    parrot.wait_for_type("gate");
    parrot.send(&json!({ "type": "interrupt" }));
    parrot.wait_for_type("interrupted");
    // This interrupt comes after the turn; it must not stop the next one.
    parrot.send(&json!({ "type": "interrupt" }));
    parrot.prompt("say a");
    parrot.prompt("say b");
    let (messages, _, code) = parrot.wait_for_exit();
    let results: Vec<_> =
        messages.iter().filter(|line| line["type"] == "result").map(|line| &line["text"]).collect();
    assert_eq!((results, code), (vec![&json!("a"), &json!("b")], Some(0)));
}

#[test]
fn a_failure_is_reported_and_exits_with_1() {
    let folder = new_folder();
    for arguments in [&[] as &[&str], &["--sticky"]] {
        let mut parrot = ParrotChild::start(&folder, arguments);
        parrot.prompt("say almost\nfail no luck");
        assert_eq!(parrot.wait_for_type("failed")["message"], "no luck");
        assert_eq!(parrot.wait_for_exit().2, Some(1));
    }
}

#[test]
fn files_stay_inside_the_workspace_and_the_sandbox() {
    let folder = new_folder();
    std::os::unix::fs::symlink("..", folder.path().join("workspace/up")).unwrap();
    std::os::unix::fs::symlink("../escaped", folder.path().join("workspace/link")).unwrap();
    for path in ["../escaped", "/tmp/../escaped", "up/escaped", "link", "sub/../../escaped", ".."] {
        for order in ["write", "append"] {
            let mut parrot = ParrotChild::start(&folder, &[]);
            parrot.prompt(&format!("{order} {path} x"));
            parrot.wait_for_type("failed");
            parrot.wait_for_exit();
        }
    }
    let mut reader = ParrotChild::start(&folder, &["--sandbox", "read-only"]);
    reader.prompt("write inside x");
    assert!(reader.wait_for_type("failed")["message"].as_str().unwrap().contains("read-only"));
    assert!(!folder.path().join("escaped").exists());
    run_turn(
        &folder,
        &["--sandbox", "workspace-write"],
        "write a/b/c.txt one\nappend a/b/c.txt two\nwrite plain",
    );
    assert_eq!((file(&folder, "a/b/c.txt").as_str(), file(&folder, "plain").as_str()), ("one\ntwo\n", "\n"));
}

#[test]
fn a_hundred_megabytes_are_printed_in_bounded_memory() {
    let folder = new_folder();
    let mut parrot = ParrotChild::start(&folder, &[]);
    parrot.prompt("print 100000000\ngate Wait?\nsay done");
    let mut bytes = 0;
    loop {
        let line = parrot.next_message().unwrap();
        match line["type"].as_str() {
            Some("output") => bytes += line["text"].as_str().unwrap().len(),
            Some("gate") => break,
            _ => {}
        }
    }
    assert_eq!(bytes, 100_000_000);
    let kilobytes = abide_testkit::proc::peak_memory(parrot.child.id()) >> 10;
    assert!(kilobytes < 50_000, "{kilobytes} kB");
    parrot.child.kill().unwrap();
    parrot.wait_for_exit();
}

#[test]
fn a_hanging_parrot_ends_only_by_sigkill() {
    let folder = new_folder();
    let mut parrot = ParrotChild::start(&folder, &["--session-id", "s1"]);
    parrot.prompt("hang");
    parrot.wait_for_type("progress");
    parrot.signal(rustix::process::Signal::TERM);
    parrot.signal(rustix::process::Signal::INT);
    parrot.send(&json!({ "type": "interrupt" }));
    // The process ignores both signals and the interrupt; only the SIGKILL below ends it.
    assert!(parrot.child.try_wait().unwrap().is_none());
    parrot.signal(rustix::process::Signal::KILL);
    let status = parrot.child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "not by an earlier signal");
    assert_eq!(run_turn(&folder, &["--resume", "s1"], "say back"), "back");
}
