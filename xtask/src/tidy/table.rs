//! The crates and the arrows allowed between them. A new crate gets its row here, in the commit that adds it.
//!
//! Each row reads "NAME may use …". What is not in a row is forbidden: that is why the crate is a crate. `testkit`
//! may be a dev-dependency of anyone and needs no mention; other crates that only tests use go to `in_tests`.

use super::arrows::{Outside, Row};

pub(super) const TABLE: &[Row] = &[
    Row { name: "domain", uses: &[], in_tests: &[], outside: Outside::Only(&["serde", "thiserror"]) },
    Row { name: "ports", uses: &["domain"], in_tests: &[], outside: Outside::Free },
    Row {
        name: "engines",
        uses: &["domain", "ports"],
        in_tests: &[],
        // It turns bytes into meaning and never runs anything.
        outside: Outside::Not(&["tokio", "rusqlite", "tokio-postgres", "axum", "reqwest"]),
    },
    Row { name: "channels", uses: &["domain", "ports"], in_tests: &[], outside: Outside::Not(DATABASES) },
    // Mechanisms of the operating system. It knows none of our nouns.
    Row {
        name: "os",
        uses: &[],
        in_tests: &[],
        outside: Outside::Only(&["landlock", "rustix", "thiserror"]),
    },
    Row { name: "store", uses: &["domain", "ports", "os"], in_tests: &[], outside: Outside::Not(HTTP) },
    Row { name: "keeper", uses: &["os"], in_tests: &[], outside: Outside::Not(DATABASES_AND_HTTP) },
    Row {
        name: "terminal",
        uses: &["domain", "ports", "os", "keeper"],
        in_tests: &[],
        outside: Outside::Not(DATABASES_AND_HTTP),
    },
    Row {
        name: "agent",
        uses: &["os", "keeper", "terminal"],
        in_tests: &[],
        outside: Outside::Not(DATABASES),
    },
    Row {
        name: "daemon",
        // No adapter: those are plugged in by the cli.
        uses: &["domain", "ports"],
        in_tests: &["store", "engines"],
        outside: Outside::Not(DATABASES_AND_HTTP),
    },
    Row { name: "wire", uses: &[], in_tests: &[], outside: Outside::Not(DATABASES_AND_HTTP) },
    Row {
        name: "api",
        uses: &["domain", "ports", "os", "daemon", "terminal", "wire"],
        in_tests: &["store"],
        outside: Outside::Not(DATABASES),
    },
    Row {
        name: "cli",
        uses: &[
            "domain", "ports", "engines", "channels", "store", "os", "keeper", "terminal", "agent", "daemon",
            "wire", "api",
        ],
        in_tests: &[],
        outside: Outside::Free,
    },
    Row { name: "testkit", uses: &["domain", "ports"], in_tests: &["store"], outside: Outside::Free },
    // A test in itself, never shipped: hence the one normal arrow to testkit.
    Row {
        name: "sim",
        uses: &["domain", "ports", "store", "daemon", "testkit"],
        in_tests: &[],
        outside: Outside::Not(HTTP),
    },
    // The same, for the real program from outside: what it knows of the daemon is what everybody sees, and the journal.
    Row {
        name: "siege",
        uses: &["domain", "ports", "store", "testkit"],
        in_tests: &[],
        outside: Outside::Not(HTTP),
    },
    Row { name: "xtask", uses: &[], in_tests: &[], outside: Outside::Free },
];

const DATABASES: &[&str] = &["rusqlite", "tokio-postgres", "sqlx"];
const HTTP: &[&str] = &["axum", "hyper", "reqwest", "tower-http"];
const DATABASES_AND_HTTP: &[&str] =
    &["rusqlite", "tokio-postgres", "sqlx", "axum", "hyper", "reqwest", "tower-http"];
