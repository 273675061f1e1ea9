//! The home directory and the environment: read here, passed on as plain values.

use std::path::PathBuf;

use abide_keeper::launch::Launcher;
use abide_terminal::{Config, Limits};
use anyhow::{Context, bail};

/// The hidden subcommand by which this program becomes a keeper.
pub(crate) const KEEPER: &str = "__keeper";

/// The home: `$ABIDE_HOME`, or `~/.abide`.
pub(crate) fn home() -> anyhow::Result<PathBuf> {
    if let Some(home) = variable("ABIDE_HOME") {
        return std::path::absolute(home).context("cannot use ABIDE_HOME");
    }
    let user = variable("HOME").context("neither ABIDE_HOME nor HOME is set")?;
    Ok(PathBuf::from(user).join(".abide"))
}

/// The terminal runtime's configuration.
pub(crate) fn terminal(detached: bool) -> anyhow::Result<Config> {
    let standard = Limits::default();
    let limits = Limits {
        max_sessions: number("ABIDE_TERMINAL_MAX_SESSIONS", standard.max_sessions)?,
        spool_bytes: number("ABIDE_TERMINAL_SPOOL_BYTES", standard.spool_bytes)?,
        idle_ms: number("ABIDE_TERMINAL_IDLE_MS", standard.idle_ms)?,
        remember_ms: number("ABIDE_TERMINAL_REMEMBER_MS", standard.remember_ms)?,
        housekeeping_ms: number("ABIDE_TERMINAL_HOUSEKEEPING_MS", standard.housekeeping_ms)?,
    };
    Ok(Config {
        keepers: home()?.join("keepers"),
        launcher: Launcher {
            program: std::env::current_exe().context("cannot find this program")?,
            arguments: vec![KEEPER.to_owned()],
        },
        env: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        cwd: std::env::current_dir()
            .context("cannot use the current directory")?
            .to_string_lossy()
            .into_owned(),
        shell: variable("ABIDE_TERMINAL_SHELL").unwrap_or_else(|| "/bin/sh".to_owned()),
        detached,
        limits,
    })
}

fn number<N: std::str::FromStr>(name: &str, standard: N) -> anyhow::Result<N> {
    match variable(name) {
        None => Ok(standard),
        Some(text) => match text.parse() {
            Ok(number) => Ok(number),
            Err(_) => bail!("{name}={text} is no number"),
        },
    }
}

#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
