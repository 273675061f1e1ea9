//! Nothing that a daemon writes repeats a secret that it was given.

use crate::place::{Place, text};

const TOKEN: &str = "token-hidden-of-this-home-0123456789abcdef";
const VALUE: &str = "value-hidden-for-the-engine";
const PASSWORD: &str = "password-hidden-of-the-store";

#[test]
fn no_line_no_file_and_no_answer_repeats_the_token_or_an_engines_variable() {
    let config = format!(
        "[log]\nlevel = \"trace\"\nformat = \"json\"\n[engines.parrot]\nenv = {{ PARROT_KEY = \"{VALUE}\" }}\n"
    );
    let place = Place::new(&config);
    std::fs::write(place.path().join("token"), TOKEN).unwrap();
    let daemon = place.up(&[]);
    let run = daemon.run("say hello\nfail it broke");
    let mut answers = vec![];
    while !answers.last().is_some_and(|answer: &String| answer.contains("\"failed\"")) {
        answers.push(daemon.get(&format!("/v1/runs/{run}")));
    }
    answers.push(daemon.get("/v1/events?limit=100"));
    answers.push(daemon.get("/metrics"));
    answers.push(place.told(&["show", &run, "--json"]));
    answers.push(place.told(&["config", "show"]));
    let refused = place.abide(&["run", "nobody", "hello", "--json"]);
    answers.extend([text(&refused.stdout), text(&refused.stderr)]);
    let log = daemon.down(&place);
    assert!(log.lines().filter(|line| line.contains("\"message\"")).count() > 5, "it was logged: {log}");
    answers.push(log);
    for said in answers {
        for secret in [TOKEN, VALUE] {
            assert!(!said.contains(secret), "{secret} is repeated in {said}");
        }
    }
    for (path, contents) in place.files() {
        let own = ["token", "config.toml"].iter().any(|name| path.ends_with(name));
        let contents = text(&contents);
        for secret in [TOKEN, VALUE] {
            assert!(own || !contents.contains(secret), "{secret} is in {}", path.display());
        }
    }
}

#[test]
fn a_store_that_cannot_be_reached_is_complained_about_without_its_password() {
    // Nobody listens on port 1.
    let config =
        format!("store = \"postgres://abide:{PASSWORD}@127.0.0.1:1/abide\"\n[log]\nlevel = \"trace\"\n");
    let place = Place::new(&config);
    for words in [&["up"][..], &["verify"], &["backup", "copy.db"], &["config", "show"], &["config", "check"]]
    {
        let output = place.abide(words);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!said.is_empty() && !said.contains(PASSWORD), "abide {words:?}: {said}");
    }
    assert!(text(&place.abide(&["backup", "copy.db"]).stderr).contains("pg_dump"));
}
