//! The crates and their allowed dependencies. A new crate gets its row in the commit that adds it.
//!
//! Each row reads "NAME may use …". Dependencies that are not in a row are forbidden, to keep the purpose of the crate.
//! `testkit` may be a dev-dependency of any crate and is not listed; other crates that only tests use are in
//! `in_tests`.

use super::arrows::{CrateRow, OutsideRule};

pub(super) const TABLE: &[CrateRow] = &[
    CrateRow {
        name: "domain",
        uses: &[],
        dev_uses: &[],
        external: OutsideRule::Only(&["serde", "thiserror"]),
    },
    CrateRow { name: "ports", uses: &["domain"], dev_uses: &[], external: OutsideRule::Free },
    CrateRow {
        name: "engines",
        uses: &["domain", "ports"],
        dev_uses: &[],
        // It interprets bytes and never runs a program.
        external: OutsideRule::Not(&["tokio", "rusqlite", "tokio-postgres", "axum", "reqwest"]),
    },
    CrateRow {
        name: "channels",
        uses: &["domain", "ports"],
        dev_uses: &[],
        external: OutsideRule::Not(DATABASES),
    },
    // Mechanisms of the operating system. It does not depend on the domain.
    CrateRow {
        name: "os",
        uses: &[],
        dev_uses: &[],
        external: OutsideRule::Only(&["landlock", "rustix", "strsim", "thiserror"]),
    },
    CrateRow {
        name: "store",
        uses: &["domain", "ports", "os"],
        dev_uses: &[],
        external: OutsideRule::Not(HTTP),
    },
    CrateRow { name: "keeper", uses: &["os"], dev_uses: &[], external: OutsideRule::Not(DATABASES_AND_HTTP) },
    CrateRow {
        name: "terminal",
        uses: &["domain", "ports", "os", "keeper"],
        dev_uses: &[],
        external: OutsideRule::Not(DATABASES_AND_HTTP),
    },
    CrateRow {
        name: "agent",
        uses: &["os", "keeper", "terminal"],
        dev_uses: &[],
        external: OutsideRule::Not(DATABASES),
    },
    // Adapters of this machine. They get plain values: no arguments, no settings, no HTTP, no database.
    CrateRow {
        name: "host",
        uses: &["domain", "ports", "keeper", "os"],
        dev_uses: &["store"],
        external: OutsideRule::Not(&[
            "axum",
            "hyper",
            "reqwest",
            "ureq",
            "rusqlite",
            "tokio-postgres",
            "clap",
        ]),
    },
    CrateRow {
        name: "daemon",
        // No adapters: `cli` passes them in. From `os` it uses the failpoints.
        uses: &["domain", "ports", "os"],
        dev_uses: &["store", "engines"],
        external: OutsideRule::Not(DATABASES_AND_HTTP),
    },
    // A program like any other engine: it shares only the format of prompts and questions with its adapter.
    CrateRow {
        name: "parrot",
        uses: &["engines", "os"],
        dev_uses: &["domain"],
        external: OutsideRule::Not(DATABASES_AND_HTTP),
    },
    // Operators' view of commits and requests. Its values come from the ports, its HTTP routes are in `api`.
    CrateRow {
        name: "observe",
        uses: &["domain", "ports"],
        dev_uses: &["store"],
        external: OutsideRule::Not(&["axum", "hyper", "rusqlite", "tokio-postgres", "clap"]),
    },
    CrateRow { name: "wire", uses: &[], dev_uses: &[], external: OutsideRule::Not(DATABASES_AND_HTTP) },
    CrateRow {
        name: "api",
        uses: &["domain", "ports", "os", "daemon", "observe", "terminal", "wire"],
        dev_uses: &["store"],
        external: OutsideRule::Not(DATABASES),
    },
    CrateRow {
        name: "cli",
        uses: &[
            "domain", "ports", "engines", "channels", "store", "os", "keeper", "terminal", "agent", "host",
            "daemon", "observe", "parrot", "wire", "api",
        ],
        dev_uses: &[],
        external: OutsideRule::Free,
    },
    CrateRow {
        name: "testkit",
        uses: &["domain", "ports", "os"],
        dev_uses: &["store"],
        external: OutsideRule::Free,
    },
    // A test harness that is never shipped, hence the normal dependency on testkit.
    CrateRow {
        name: "sim",
        uses: &["domain", "ports", "store", "daemon", "testkit"],
        dev_uses: &[],
        external: OutsideRule::Not(HTTP),
    },
    // The same for the real program from outside: it uses only the public interfaces of the daemon, and the journal.
    CrateRow {
        name: "crash-tests",
        uses: &["domain", "ports", "store", "testkit"],
        dev_uses: &[],
        external: OutsideRule::Not(HTTP),
    },
    CrateRow { name: "xtask", uses: &[], dev_uses: &[], external: OutsideRule::Free },
];

const DATABASES: &[&str] = &["rusqlite", "tokio-postgres", "sqlx"];
const HTTP: &[&str] = &["axum", "hyper", "reqwest", "tower-http"];
const DATABASES_AND_HTTP: &[&str] =
    &["rusqlite", "tokio-postgres", "sqlx", "axum", "hyper", "reqwest", "tower-http"];
