//! Command output: with and without colours, as JSON, and to a pipe that is closed early.

use std::{io::Read, process::Stdio};

use serde_json::Value;

use crate::harness::{CommandTestHome, on_terminal, on_terminal_with_env};

/// Returns the names of an object's fields.
fn fields(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

#[test]
fn everything_is_there_as_json_in_the_shapes_of_the_interface() {
    let home = CommandTestHome::new();
    let up = home.run_json(&["up", "--detach"]);
    assert!(up["url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    let ran = home.run_json(&["run", "parrot", "say hello"]);
    assert_eq!((&ran["status"], &ran["result"]["text"]), (&"succeeded".into(), &"hello".into()));
    let detached = home.run_json(&["run", "parrot", "say later", "--detach", "--label", "team=blue"]);
    assert_eq!(detached["labels"]["team"], "blue");
    let output = home.run(&["run", "parrot", "ask confirm Sure?", "--json"]);
    assert_eq!(output.code, Some(101));
    let waits: Value = serde_json::from_str(&output.stdout).unwrap();
    let error: Value = serde_json::from_str(output.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(error["code"], "WAITING_FOR_PERSON");
    assert_eq!(error["interaction"]["interaction_id"], waits["pending_interaction_id"]);

    let runs = home.run_json(&["ls"]);
    assert_eq!(runs.as_array().unwrap().len(), 3);
    assert_eq!(fields(&runs[0]), fields(&ran));
    assert_eq!(home.run_json(&["ls", "--status", "waiting_user"])[0]["run_id"], waits["run_id"]);
    assert_eq!(home.run_json(&["ls", "--limit", "1"]).as_array().unwrap().len(), 1);
    let shown = home.run_json(&["show", "last"]);
    let mut parts = fields(&shown);
    parts.sort_unstable();
    assert_eq!(parts, ["interactions", "run", "turns"]);
    let inbox = home.run_json(&["inbox"]);
    assert_eq!(inbox[0]["interaction_id"], waits["pending_interaction_id"]);
    let events = home.run_json(&["logs", "last"]);
    assert_eq!(events[0]["type"], "run_created");
    assert_eq!(home.run_json(&["reply", "last", "yes"])["resolution"], "accepted");
    assert_eq!(home.run_json(&["attach", "last"])["status"], "succeeded");
    assert_eq!(home.run_json(&["cancel", "last"])["accepted"], false);
    let mut parts = fields(&home.run_json(&["down"])).into_iter().map(str::to_owned).collect::<Vec<_>>();
    parts.sort_unstable();
    assert_eq!(parts, ["runs", "sessions", "turns", "waiting_runs"]);
}

#[test]
fn colours_are_printed_only_on_terminals_that_want_them() {
    let home = CommandTestHome::new();
    assert_eq!(home.run(&["run", "parrot", "say hello"]).code, Some(0));
    assert!(!home.run(&["ls"]).stdout.contains('\x1b'));
    assert!(!home.run(&["show", "last"]).stdout.contains('\x1b'));
    let mut coloured = on_terminal(&home, &["ls"]);
    assert_eq!(coloured.wait_for_exit(), Some(0));
    assert!(coloured.output.contains("\x1b[32msucceeded\x1b[0m"), "{:?}", coloured.output);
    let mut plain = on_terminal_with_env(&home, &["ls"], &[("NO_COLOR", "1")]);
    assert_eq!(plain.wait_for_exit(), Some(0));
    assert!(plain.output.contains("succeeded") && !plain.output.contains('\x1b'), "{:?}", plain.output);
    let mut dumb =
        on_terminal_with_env(&home, &["run", "parrot", "progress x\nsay hello"], &[("TERM", "dumb")]);
    assert_eq!(dumb.wait_for_exit(), Some(0));
    assert!(dumb.output.contains("hello") && !dumb.output.contains('\x1b'), "{:?}", dumb.output);
}

#[test]
fn agent_output_is_escaped_on_terminals_and_unchanged_in_files() {
    let home = CommandTestHome::new();
    let nasty = "say a\x1b]0;owned\x07\x1b[2Jb\nprogress p\x1b[5m\nask open_text q\x1b[31m? | o\x1b[7m";
    let mut user = on_terminal_with_env(&home, &["run", "parrot", nasty], &[("NO_COLOR", "1")]);
    user.wait_for_text("a␛]0;owned␇␛[2Jb");
    user.wait_for_text("q␛[31m?");
    user.answer_prompt("1\r");
    assert_eq!(user.wait_for_exit(), Some(0));
    for order in ["\x1b]0;", "\x1b[2J", "\x1b[5m", "\x1b[31m", "\x1b[7m"] {
        assert!(!user.output.contains(order), "{order:?}: {:?}", user.output);
    }
    for words in [&["show", "last"][..], &["logs", "last"], &["ls"], &["attach", "last"]] {
        let mut looking = on_terminal_with_env(&home, words, &[("NO_COLOR", "1")]);
        looking.wait_for_exit();
        assert!(
            !looking.output.contains("\x1b]") && !looking.output.contains("\x1b[2J"),
            "{words:?}: {:?}",
            looking.output
        );
    }
    let exact = home.run(&["run", "parrot", "say a\x1b[1mb 数据"]);
    assert_eq!(exact.stdout, "a\x1b[1mb 数据\n");
}

#[test]
fn a_closed_output_pipe_is_no_error() {
    let home = CommandTestHome::new();
    let script = (0..2000).map(|n| format!("say line {n}\n")).collect::<String>();
    assert_eq!(home.run_with_stdin(&["run", "parrot", "-"], script.as_bytes()).code, Some(0));
    for words in
        [&["logs", "last"][..], &["show", "last"], &["logs", "last", "--json"], &["completions", "zsh"]]
    {
        let mut command = home.command();
        let mut child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 1];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()),
            (Some(0), ""),
            "{words:?}"
        );
    }
}

#[test]
fn wide_characters_count_twice_where_a_line_is_cut_to_the_terminal() {
    let home = CommandTestHome::new();
    let wide = "数据库已经迁移完成".repeat(20);
    assert_eq!(home.run(&["run", "parrot", &format!("say {wide}")]).code, Some(0));
    assert_eq!(home.run(&["run", "parrot", &format!("say {}", "plain ".repeat(40))]).code, Some(0));
    let mut user = on_terminal(&home, &["ls"]);
    assert_eq!(user.wait_for_exit(), Some(0));
    // Colour sequences are removed.
    let seen: String = user.output.split('\x1b').enumerate().fold(String::new(), |text, (number, part)| {
        text + if number == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) }
    });
    let columns = |line: &str| -> usize { line.chars().map(|c| if c >= '\u{2e80}' { 2 } else { 1 }).sum() };
    let rows: Vec<(usize, &str)> = seen
        .lines()
        .filter(|line| line.starts_with("run_"))
        .map(|line| (columns(line.trim_end()), line))
        .collect();
    assert_eq!(rows.len(), 2, "{seen}");
    for (columns, line) in rows {
        assert!((155..=160).contains(&columns), "{columns} of 160 columns: {line}");
    }
}

#[test]
fn the_settings_of_a_run_are_part_of_its_story() {
    let home = CommandTestHome::new();
    let words = [
        "run",
        "parrot",
        "say hello",
        "--auto-decide",
        "--session-timeout",
        "60",
        "--turn-timeout",
        "90",
        "--model",
        "small",
        "--sandbox",
        "read-only",
        "--on-busy",
        "supersede",
        "--label",
        "team=blue",
        "--workspace",
        "work",
    ];
    // The working directory of the command is Abide's home, which is refused as a workspace.
    std::fs::create_dir(home.path().join("work")).unwrap();
    assert_eq!(home.run(&words).code, Some(0));
    let shown = home.run_json(&["show", "last"]);
    let options = serde_json::json!({
        "interactive_require_user_reply": false, "session_timeout_sec": 60, "turn_timeout_sec": 90,
        "on_busy": "supersede", "model": "small", "sandbox": "read-only",
    });
    assert_eq!(shown["run"]["options"], options);
    let shown = home.run(&["show", "last"]).stdout;
    for fact in
        ["policy answers after 60 s", "90 s of work", "small", "read-only", "end the running turn", "blue"]
    {
        assert!(shown.contains(fact), "{fact}: {shown}");
    }
}

#[test]
fn every_command_has_examples() {
    let home = CommandTestHome::new();
    let commands = subcommands(&home, &[]);
    for expected in
        ["up", "run", "reply", "agent", "rpc", "mcp", "sessions", "config", "doctor", "verify", "backup"]
    {
        assert!(commands.iter().any(|command| command == expected), "{expected}: {commands:?}");
    }
    let mut without = vec![];
    for command in &commands {
        let help = home.run(&[command.as_str(), "--help"]);
        assert_eq!(help.code, Some(0), "{command}");
        // A command with subcommands may leave the examples to them.
        let parts = subcommands(&home, &[command]);
        let shown = |words: &[&str]| home.run(&[words, &["--help"]].concat()).stdout.contains("Example");
        let in_parts = !parts.is_empty() && parts.iter().all(|part| shown(&[command, part]));
        if !help.stdout.contains("Example") && !in_parts {
            without.push(command.clone());
        }
    }
    assert_eq!(without, [""; 0]);
}

/// Returns the subcommands that the help of a command lists.
fn subcommands(home: &CommandTestHome, words: &[&str]) -> Vec<String> {
    let help = home.run(&[words, &["--help"]].concat()).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}
