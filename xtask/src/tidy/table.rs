//! The crates and the arrows allowed between them. A new crate gets its row here, in the commit that adds it.
//!
//! Each row reads "NAME may use …". What is not in a row is forbidden: that is why the crate is a crate. `testkit`
//! may be a dev-dependency of anyone and needs no mention; other crates that only tests use go to `in_tests`.

use super::arrows::{CrateRow, OutsideRule};

pub(super) const TABLE: &[CrateRow] = &[
    CrateRow {
        name: "domain",
        uses: &[],
        in_tests: &[],
        outside: OutsideRule::Only(&["serde", "thiserror"]),
    },
    CrateRow { name: "ports", uses: &["domain"], in_tests: &[], outside: OutsideRule::Free },
    CrateRow {
        name: "engines",
        uses: &["domain", "ports"],
        in_tests: &[],
        // It turns bytes into meaning and never runs anything.
        outside: OutsideRule::Not(&["tokio", "rusqlite", "tokio-postgres", "axum", "reqwest"]),
    },
    CrateRow {
        name: "channels",
        uses: &["domain", "ports"],
        in_tests: &[],
        outside: OutsideRule::Not(DATABASES),
    },
    // Mechanisms of the operating system. It knows none of our nouns.
    CrateRow {
        name: "os",
        uses: &[],
        in_tests: &[],
        outside: OutsideRule::Only(&["landlock", "rustix", "thiserror"]),
    },
    CrateRow {
        name: "store",
        uses: &["domain", "ports", "os"],
        in_tests: &[],
        outside: OutsideRule::Not(HTTP),
    },
    CrateRow { name: "keeper", uses: &["os"], in_tests: &[], outside: OutsideRule::Not(DATABASES_AND_HTTP) },
    CrateRow {
        name: "terminal",
        uses: &["domain", "ports", "os", "keeper"],
        in_tests: &[],
        outside: OutsideRule::Not(DATABASES_AND_HTTP),
    },
    CrateRow {
        name: "agent",
        uses: &["os", "keeper", "terminal"],
        in_tests: &[],
        outside: OutsideRule::Not(DATABASES),
    },
    CrateRow {
        name: "daemon",
        // No adapter: those are plugged in by the cli.
        uses: &["domain", "ports"],
        in_tests: &["store", "engines"],
        outside: OutsideRule::Not(DATABASES_AND_HTTP),
    },
    CrateRow { name: "wire", uses: &[], in_tests: &[], outside: OutsideRule::Not(DATABASES_AND_HTTP) },
    CrateRow {
        name: "api",
        uses: &["domain", "ports", "os", "daemon", "terminal", "wire"],
        in_tests: &["store"],
        outside: OutsideRule::Not(DATABASES),
    },
    CrateRow {
        name: "cli",
        uses: &[
            "domain", "ports", "engines", "channels", "store", "os", "keeper", "terminal", "agent", "daemon",
            "wire", "api",
        ],
        in_tests: &[],
        outside: OutsideRule::Free,
    },
    CrateRow {
        name: "testkit",
        uses: &["domain", "ports"],
        in_tests: &["store"],
        outside: OutsideRule::Free,
    },
    // A test in itself, never shipped: hence the one normal arrow to testkit.
    CrateRow {
        name: "sim",
        uses: &["domain", "ports", "store", "daemon", "testkit"],
        in_tests: &[],
        outside: OutsideRule::Not(HTTP),
    },
    // The same, for the real program from outside: what it knows of the daemon is what everybody sees, and the journal.
    CrateRow {
        name: "siege",
        uses: &["domain", "ports", "store", "testkit"],
        in_tests: &[],
        outside: OutsideRule::Not(HTTP),
    },
    CrateRow { name: "xtask", uses: &[], in_tests: &[], outside: OutsideRule::Free },
];

const DATABASES: &[&str] = &["rusqlite", "tokio-postgres", "sqlx"];
const HTTP: &[&str] = &["axum", "hyper", "reqwest", "tower-http"];
const DATABASES_AND_HTTP: &[&str] =
    &["rusqlite", "tokio-postgres", "sqlx", "axum", "hyper", "reqwest", "tower-http"];
