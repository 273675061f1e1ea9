//! The files and logs of a daemon contain none of its secrets.

use abide_testkit::{daemon::TestHome, wait};

use crate::{files_below, new_home, text};

const TOKEN: &str = "token-hidden-of-this-home-0123456789abcdef";
const ENGINE_VALUE: &str = "value-hidden-for-the-engine";
const PASSWORD: &str = "password-hidden-of-the-store";

#[test]
fn no_line_no_file_and_no_answer_repeats_the_token_or_an_engines_variable() {
    let config = format!(
        "[log]\nlevel = \"trace\"\nformat = \"json\"\n[engines.parrot]\nenv = {{ PARROT_KEY = \"{ENGINE_VALUE}\" }}\n"
    );
    let home = new_home(&config);
    std::fs::write(home.path().join("token"), TOKEN).unwrap();
    let daemon = home.start();
    let run = home.run_parrot("say hello\nfail it broke");
    let mut answers = vec![];
    wait::until("the run has failed", || {
        let answer = home.get_text(&format!("/v1/runs/{run}"));
        let failed = answer.contains("\"failed\"");
        answers.push(answer);
        failed
    });
    answers.push(home.get_text("/v1/events?limit=100"));
    answers.push(home.get_text("/metrics"));
    answers.push(home.run_ok(&["show", &run, "--json"]));
    answers.push(home.run_ok(&["config", "show"]));
    let refused = home.run(&["run", "unknown", "hello", "--json"]);
    answers.extend([refused.stdout, refused.stderr]);
    let log = home.down(daemon);
    assert!(log.lines().filter(|line| line.contains("\"message\"")).count() > 5, "it was logged: {log}");
    answers.push(log);
    for answer in answers {
        for secret in [TOKEN, ENGINE_VALUE] {
            assert!(!answer.contains(secret), "{secret} is repeated in {answer}");
        }
    }
    for (path, contents) in files_below(home.path()) {
        let own = ["token", "config.toml"].iter().any(|name| path.ends_with(name));
        let contents = text(&contents);
        for secret in [TOKEN, ENGINE_VALUE] {
            assert!(own || !contents.contains(secret), "{secret} is in {}", path.display());
        }
    }
}

#[test]
fn a_store_that_cannot_be_reached_is_complained_about_without_its_password() {
    // Port 1 refuses connections.
    let config =
        format!("store = \"postgres://abide:{PASSWORD}@127.0.0.1:1/abide\"\n[log]\nlevel = \"trace\"\n");
    let home = new_home(&config);
    for words in [&["up"][..], &["verify"], &["backup", "copy.db"], &["config", "show"], &["config", "check"]]
    {
        let output = home.run(words);
        let text = output.stdout + &output.stderr;
        assert!(!text.is_empty() && !text.contains(PASSWORD), "abide {words:?}: {text}");
    }
    assert!(home.run(&["backup", "copy.db"]).stderr.contains("pg_dump"));
}

#[test]
fn the_settings_of_a_daemon_in_the_background_are_on_no_command_line() {
    let home = new_home("");
    let store = format!("sqlite:{}", home.path().join("hidden-place.db").display());
    home.run_ok(&["up", "--detach", "--store", &store]);
    let pid = home.daemon_pid().unwrap();
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    home.run_ok(&["run", "parrot", "say hello"]);
    home.run_ok(&["down"]);
    assert!(!text(&words).contains("hidden-place"), "{}", text(&words));
    assert!(home.path().join("hidden-place.db").exists(), "the setting holds");
}

const FOREIGN_KEY_VALUE: &str = "a-key-for-something-else";

#[test]
fn an_agent_is_not_handed_the_settings_and_the_token_of_the_daemon() {
    let home = new_home("");
    let store = format!("sqlite:{}", home.path().join(format!("{PASSWORD}.db")).display());
    let daemon = home.start_with(
        &[],
        &[
            ("ABIDE_STORE", &store),
            ("ABIDE_TOKEN", TOKEN),
            ("PARROT_SEEN", ENGINE_VALUE),
            ("NOTIFY_SOCKET", "@unknown"),
            ("AWS_SECRET_ACCESS_KEY", FOREIGN_KEY_VALUE),
        ],
    );
    let order = serde_json::json!({
        "engine": "parrot-sticky", "prompt": "ask open_text Who?\nsay hello", "execution_mode": "interactive",
    });
    home.wait_for_status(home.post("/v1/runs", &order)["run_id"].as_str().unwrap(), "waiting_user");
    let agents = agents_of(&home);
    assert!(!agents.is_empty(), "an agent waits");
    for environment in agents {
        assert!(environment.contains(ENGINE_VALUE), "the engine's environment is passed on: {environment}");
        for secret in [PASSWORD, TOKEN, FOREIGN_KEY_VALUE, "NOTIFY_SOCKET"] {
            assert!(!environment.contains(secret), "{secret} is handed on in {environment}");
        }
    }
    home.down(daemon);
}

/// Returns the environments of a home's agents: processes with the home in their environment that are neither daemon
/// nor keeper.
fn agents_of(home: &TestHome) -> Vec<String> {
    let read = |path: String| text(&std::fs::read(path).unwrap_or_default());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others = pids.filter(|pid| {
        let words = read(format!("/proc/{pid}/cmdline"));
        let words: Vec<&str> = words.split('\0').collect();
        !matches!(words.get(1), None | Some(&"up" | &"__keeper"))
    });
    let environments = others.map(|pid| read(format!("/proc/{pid}/environ")));
    environments.filter(|text| text.contains(&home.path().display().to_string())).collect()
}
