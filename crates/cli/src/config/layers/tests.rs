//! Tests of the precedence of sources, the reported origins, and the error messages.

use std::path::Path;

use expect_test::{Expect, expect};

use super::*;

fn sources(text: &str, variables: &[(&str, &str)], overrides: &[(&str, &str)]) -> ConfigSources {
    ConfigSources {
        machine_facts: MachineFacts { home: "/var/lib/abide".into(), cores: 4, memory: 32 << 30 },
        path: Path::new("config.toml").to_owned(),
        text: (!text.is_empty()).then(|| text.to_owned()),
        variables: variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        overrides: overrides
            .iter()
            .map(|(name, text)| GivenSetting {
                name: (*name).to_owned(),
                text: (*text).to_owned(),
                flag: format!("--set {name}"),
            })
            .collect(),
        built_in: vec!["codex".to_owned(), "gemini".to_owned()],
    }
}

/// Compares the settings, one line each, or all problems.
fn check(sources: &ConfigSources, expected: Expect) {
    let output = match merge(sources) {
        Ok((_, settings)) => settings
            .values()
            .map(|setting| format!("{} = {} ({})", setting.name, setting.value, setting.origin))
            .collect::<Vec<_>>()
            .join("\n"),
        Err(error) => error.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    };
    expected.assert_eq(&output);
}

#[test]
fn defaults_apply_without_other_sources() {
    check(
        &sources("", &[], &[]),
        expect![[r#"
            http.allow_remote = false (default)
            http.allowed_hosts = [] (default)
            http.max_body_bytes = 1048576 (default)
            http.max_connections = 1024 (default)
            http.max_streams = 512 (default)
            http.requests_per_second = 1000 (default)
            limits.memory_max_bytes = 0 (default)
            limits.min_free_bytes = 104857600 (default)
            limits.pids_max = 0 (default)
            listen = "127.0.0.1:4870" (default)
            log.files = 5 (default)
            log.format = "text" (default)
            log.level = "info" (default)
            log.max_bytes = 10485760 (default)
            otel.endpoint = "" (default)
            recovery.max_sec = 300 (default)
            retention.every_sec = 3600 (default)
            retention.private_days = 7 (default)
            retention.workspace_days = 30 (default)
            sandbox.cgroup = "auto" (default)
            sandbox.isolation = "auto" (default)
            slots.max_running = 8 (default)
            stall_after_sec = 600 (default)
            store = "sqlite:/var/lib/abide/abide.db" (default)
            terminal.housekeeping_ms = 30000 (default)
            terminal.idle_ms = 86400000 (default)
            terminal.max_sessions = 1000 (default)
            terminal.remember_ms = 600000 (default)
            terminal.shell = "/bin/sh" (default)
            terminal.spool_bytes = 33554432 (default)"#]],
    );
}

#[test]
fn flags_go_over_environment_over_file_over_defaults() {
    let file = "listen = '127.0.0.1:1'\nstore = 'memory:'\n[slots]\nmax_running = 0x10\n[terminal]\nidle_ms = 1_000\n";
    let variables =
        [("ABIDE_SLOTS_MAX_RUNNING", "3"), ("ABIDE_LISTEN", "127.0.0.1:2"), ("ABIDE_TERMINAL_SHELL", "zsh")];
    check(
        &sources(file, &variables, &[("listen", "127.0.0.1:3")]),
        expect![[r#"
            http.allow_remote = false (default)
            http.allowed_hosts = [] (default)
            http.max_body_bytes = 1048576 (default)
            http.max_connections = 1024 (default)
            http.max_streams = 512 (default)
            http.requests_per_second = 1000 (default)
            limits.memory_max_bytes = 0 (default)
            limits.min_free_bytes = 104857600 (default)
            limits.pids_max = 0 (default)
            listen = "127.0.0.1:3" (--set listen)
            log.files = 5 (default)
            log.format = "text" (default)
            log.level = "info" (default)
            log.max_bytes = 10485760 (default)
            otel.endpoint = "" (default)
            recovery.max_sec = 300 (default)
            retention.every_sec = 3600 (default)
            retention.private_days = 7 (default)
            retention.workspace_days = 30 (default)
            sandbox.cgroup = "auto" (default)
            sandbox.isolation = "auto" (default)
            slots.max_running = 3 (ABIDE_SLOTS_MAX_RUNNING)
            stall_after_sec = 600 (default)
            store = "memory:" (config.toml:2:1)
            terminal.housekeeping_ms = 30000 (default)
            terminal.idle_ms = 1000 (config.toml:6:1)
            terminal.max_sessions = 1000 (default)
            terminal.remember_ms = 600000 (default)
            terminal.shell = "zsh" (ABIDE_TERMINAL_SHELL)
            terminal.spool_bytes = 33554432 (default)"#]],
    );
}

#[test]
fn engines_are_set_in_every_layer() {
    let file = "[engines.codex]\ncommand = ['/opt/codex']\nenv = { KEY = 'a' }\n[engines.my_own]\nprotocol = 'acp'\n\
                command = ['own', '--acp']\n";
    let variables = [
        ("ABIDE_ENGINES_CODEX_COMMAND", "node codex.js"),
        ("ABIDE_ENGINES_MY_OWN_ENV", r#"{"TOKEN": "secret"}"#),
        ("ABIDE_ENGINES_GEMINI_ENABLED", "false"),
    ];
    let sources = sources(file, &variables, &[("engines.codex.args", r#"["-c", "a b"]"#)]);
    check(
        &sources,
        expect![[r#"
            engines.codex.args = ["-c","a b"] (--set engines.codex.args)
            engines.codex.command = ["node","codex.js"] (ABIDE_ENGINES_CODEX_COMMAND)
            engines.codex.env = {"KEY":"a"} (config.toml:3:1)
            engines.gemini.enabled = false (ABIDE_ENGINES_GEMINI_ENABLED)
            engines.my_own.command = ["own","--acp"] (config.toml:6:1)
            engines.my_own.env = {"TOKEN":"secret"} (ABIDE_ENGINES_MY_OWN_ENV)
            engines.my_own.protocol = "acp" (config.toml:5:1)
            http.allow_remote = false (default)
            http.allowed_hosts = [] (default)
            http.max_body_bytes = 1048576 (default)
            http.max_connections = 1024 (default)
            http.max_streams = 512 (default)
            http.requests_per_second = 1000 (default)
            limits.memory_max_bytes = 0 (default)
            limits.min_free_bytes = 104857600 (default)
            limits.pids_max = 0 (default)
            listen = "127.0.0.1:4870" (default)
            log.files = 5 (default)
            log.format = "text" (default)
            log.level = "info" (default)
            log.max_bytes = 10485760 (default)
            otel.endpoint = "" (default)
            recovery.max_sec = 300 (default)
            retention.every_sec = 3600 (default)
            retention.private_days = 7 (default)
            retention.workspace_days = 30 (default)
            sandbox.cgroup = "auto" (default)
            sandbox.isolation = "auto" (default)
            slots.max_running = 8 (default)
            stall_after_sec = 600 (default)
            store = "sqlite:/var/lib/abide/abide.db" (default)
            terminal.housekeeping_ms = 30000 (default)
            terminal.idle_ms = 86400000 (default)
            terminal.max_sessions = 1000 (default)
            terminal.remember_ms = 600000 (default)
            terminal.shell = "/bin/sh" (default)
            terminal.spool_bytes = 33554432 (default)"#]],
    );
    let engines = merge(&sources).unwrap().0.engine_configs();
    assert!(engines["gemini"].disabled && !engines["codex"].disabled);
    assert_eq!(engines["my_own"].protocol, Some(abide_engines::catalogue::AgentProtocol::Acp));
    assert_eq!(engines["my_own"].env["TOKEN"], "secret");
}

#[test]
fn all_problems_are_reported_together_with_origins() {
    let file = "listen = 4870\nmax_running = 3\n\n[slot]\nmax_running = 3\n\n[slots]\n  max_runing = 3\n\n[terminal]\n\
                idle_ms = -1\nshell = ''\nmax_sessions = 'many'\nspool_bytes = 1.5\n\n[log]\nlevel = 'inf'\n\n\
                [engines.codex]\ncomand = ['x']\ncommand = []\nargs = ['a', 1]\nenv = { A = 1 }\nenabled = 'yes'\n\
                [engines]\ngemini = 'off'\n['not a name']\n";
    let variables = [
        ("ABIDE_SLOTS_MAX_RUNING", "3"),
        ("ABIDE_TERMINAL_IDLE_MS", "soon"),
        ("ABIDE_ENGINES_CODEX_COMAND", "x"),
        ("ABIDE_ENGINES_CODEX_ENV", "A=1"),
        ("ABIDE_WHATEVER", "1"),
    ];
    check(
        &sources(file, &variables, &[("slots.max", "1"), ("slots.max_running", "0")]),
        expect![[r#"
            config.toml:1:10: listen: expected a text
            config.toml:2:1: unknown key max_running; did you mean slots.max_running?
            config.toml:4:2: unknown key slot; did you mean slots?
            config.toml:8:3: unknown key slots.max_runing; did you mean slots.max_running?
            config.toml:11:11: terminal.idle_ms: expected a whole number from 0 up
            config.toml:12:9: terminal.shell: expected a text that is not empty
            config.toml:13:16: terminal.max_sessions: expected a whole number from 0 up
            config.toml:14:15: terminal.spool_bytes: expected a whole number from 0 up
            config.toml:17:9: log.level: expected one of error, warn, info, debug, trace; did you mean info?
            config.toml:20:1: unknown key engines.codex.comand; did you mean engines.codex.command?
            config.toml:21:11: engines.codex.command: expected a list that is not empty
            config.toml:22:8: engines.codex.args: expected a list of texts, such as ["one", "two"]
            config.toml:23:7: engines.codex.env: expected names and texts, such as { NAME = "value" }, in a variable {"NAME": "value"}
            config.toml:24:11: engines.codex.enabled: expected true or false
            config.toml:26:10: engines.gemini: expected a section
            config.toml:27:2: a name consists of letters, digits, - and _, unlike "not a name"
            ABIDE_SLOTS_MAX_RUNING: no setting has this name; did you mean ABIDE_SLOTS_MAX_RUNNING?
            ABIDE_TERMINAL_IDLE_MS: expected a whole number from 0 up
            ABIDE_ENGINES_CODEX_COMAND: no setting has this name; did you mean ABIDE_ENGINES_CODEX_COMMAND?
            ABIDE_ENGINES_CODEX_ENV: expected names and texts, such as { NAME = "value" }, in a variable {"NAME": "value"}
            ABIDE_WHATEVER: no setting has this name
            --set slots.max: unknown key slots.max
            --set slots.max_running: expected a whole number from 1 to 10000"#]],
    );
}

#[test]
fn an_engine_is_built_in_or_has_a_protocol_and_a_command() {
    let file = "[engines.codx]\nenabled = true\n[engines.gemini]\nprotocol = 'acp'\n[engines.own]\nprotocol = 'acp'\n";
    check(
        &sources(file, &[("ABIDE_ENGINES_HERS_COMMAND", "hers")], &[]),
        expect![[r#"
        config.toml:2:1: engines.codx: no engine of this name is built in (codex, gemini), and one of your own needs protocol = "acp" and a command; did you mean engines.codex?
        config.toml:4:1: engines.gemini.protocol: gemini is built in and has its own protocol
        ABIDE_ENGINES_HERS_COMMAND: engines.hers: no engine of this name is built in (codex, gemini), and one of your own needs protocol = "acp" and a command
        config.toml:6:1: engines.own.protocol: needs engines.own.command (ABIDE_ENGINES_OWN_COMMAND) too"#]],
    );
}

#[test]
fn an_address_and_a_url_have_their_form() {
    check(
        &sources("listen = 'localhost'\nstore = '/a/b.db'\n", &[], &[]),
        expect![[r#"
        config.toml:1:1: listen: expected an IP address and a port, such as 127.0.0.1:4870
        config.toml:2:1: store: expected a URL, such as sqlite:/var/lib/abide/abide.db"#]],
    );
}

#[test]
fn a_syntax_error_is_reported_with_line_and_column() {
    check(
        &sources("[slots]\nmax_running = = 3\nlisten\n", &[], &[]),
        expect![[r#"
        config.toml:2:15: extra `=`, expected nothing
        config.toml:2:17: unexpected key or value, expected newline, `#`
        config.toml:3:7: key with no value, expected `=`"#]],
    );
    check(
        &sources("listen = '127.0.0.1:1'\nlisten = '127.0.0.1:2'\n", &[], &[]),
        expect!["config.toml:2:1: duplicate key"],
    );
}

#[test]
fn other_variables_and_empty_ones_are_not_taken_for_settings() {
    let variables = [
        "ABIDE_HOME",
        "ABIDE_TOKEN",
        "ABIDE_BIN",
        "ABIDE_TEST_ENGINES",
        "ABIDE_TEST_FAILPOINT",
        "ABIDE_REQUIRE_ENGINES",
        "ABIDE_MODEL",
        "ABIDE_MODEL_API_KEY",
        "PATH",
    ]
    .map(|name| (name, "x"));
    let defaults = merge(&sources("", &[], &[]));
    assert_eq!(merge(&sources("", &variables, &[])), defaults);
    assert_eq!(merge(&sources("", &[("ABIDE_TERMINAL_SHELL", "")], &[])), defaults);
}

#[test]
fn a_problem_does_not_repeat_a_value_that_may_be_secret() {
    let sources = sources("", &[("ABIDE_ENGINES_CODEX_ENV", "TOKEN=s3cret"), ("ABIDE_STORE", "s3cret")], &[]);
    assert!(!merge(&sources).unwrap_err().to_string().contains("s3cret"));
}

#[test]
fn the_example_in_the_manual_can_be_used() {
    let manual = include_str!("../../../../../docs/configuration.md");
    let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(merge(&sources(example, &[], &[])).err(), None);
}

#[test]
fn the_schema_that_is_checked_in_is_the_one_of_the_code() {
    let schema = super::super::keys::schema();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.schema.json");
    let read = || serde_json::from_str::<Value>(&std::fs::read_to_string(&path).unwrap_or_default()).ok();
    if std::env::vars_os().any(|(name, _)| name == "UPDATE_EXPECT") && read().as_ref() != Some(&schema) {
        std::fs::write(&path, format!("{schema:#}\n")).unwrap();
    }
    assert_eq!(read(), Some(schema), "docs/config.schema.json is stale; UPDATE_EXPECT=1 rewrites it");
}
