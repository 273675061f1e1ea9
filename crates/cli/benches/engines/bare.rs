//! The agent program without Abide: started directly, with the launch that the adapter specifies.
//!
//! A one-shot program is read to the end of its output and waited for. A sticky program speaks a protocol, so its
//! interpreter must answer it; its turn ends when it reports that.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use abide_domain::{effect::LaunchSession, engine::ProfileKind, settings::ExecutionMode};
use abide_ports::{
    catalogue::InstalledEngine,
    clock::Clock as _,
    engine::{FactKind, LaunchContext, ProcessSpec, ProcessStdin, PromptSource},
};

use crate::{figures::now, ours::PROMPT};

/// The times of a turn of the bare program, in microseconds from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BareTurnTimes {
    /// Until the line with the session's id was read.
    pub(crate) session: f64,
    /// Until its input was written.
    pub(crate) input_written: f64,
    /// Until it reported the end of its turn, or until it exited if it does not report it.
    pub(crate) total: f64,
}

pub(crate) fn turn(
    entry: &InstalledEngine,
    kind: ProfileKind,
    home: &Path,
    env: &[(String, String)],
) -> Result<BareTurnTimes, String> {
    let fresh = abide_host::clock::SystemClock.stamp().id_seed;
    let named = match kind {
        ProfileKind::Resumable => {
            entry.engine.new_session_handle(&uuid::Uuid::from_u128(fresh.0).to_string())
        }
        ProfileKind::StickyProcess => None,
    };
    let session = named.map_or(LaunchSession::New, LaunchSession::Named);
    let private = home.join(format!("runs/bare-{fresh}"));
    let (private, workspace) = (private.to_string_lossy(), home.join("workspace"));
    let workspace = workspace.to_string_lossy();
    let context = LaunchContext {
        installation: &entry.installation,
        kind,
        session: &session,
        prompt: PROMPT,
        workspace: &workspace,
        private_dir: &private,
        mode: ExecutionMode::Interactive,
        model: None,
        sandbox: None,
        isolation: Default::default(),
        session_started_at: None,
        resume_detail: "",
        prompt_source: PromptSource::Message,
        skill: None,
    };
    let launch = entry.engine.launch(&context).map_err(|unsupported| unsupported.to_string())?;
    let started = now();
    let mut child = spawn(&launch, &private, &workspace, env).map_err(|error| error.to_string())?;
    let (mut stdin, mut stdout) = (child.stdin.take(), child.stdout.take().ok_or("it has no output")?);
    let (bytes, ends) = match &launch.stdin {
        ProcessStdin::Complete(bytes) => (bytes, true),
        ProcessStdin::KeptOpen(bytes) => (bytes, false),
    };
    let held = kind == ProfileKind::StickyProcess;
    let mut tell = |bytes: &[u8]| match stdin.as_mut() {
        Some(stdin) => stdin.write_all(bytes).and_then(|()| stdin.flush()).map_err(|error| error.to_string()),
        None => Ok(()),
    };
    tell(bytes)?;
    let mut interpreter = entry.engine.interpreter(&context);
    let (mut named, mut over) = (None, None);
    let mut buffer = vec![0; 64 << 10];
    if ends {
        drop(stdin.take());
    }
    let fed = now();
    loop {
        let count = stdout.read(&mut buffer).map_err(|error| error.to_string())?;
        if count == 0 {
            break;
        }
        for fact in interpreter.feed(buffer.get(..count).unwrap_or_default()) {
            match fact.kind {
                FactKind::Session { .. } => named = named.or(Some(now())),
                FactKind::WriteStdin(bytes) => {
                    if let Some(stdin) = stdin.as_mut() {
                        stdin.write_all(&bytes).map_err(|error| error.to_string())?;
                    }
                }
                FactKind::TurnEnded { .. } => {
                    over = Some(now());
                    drop(stdin.take());
                }
                FactKind::Text(_)
                | FactKind::Progress(_)
                | FactKind::Warning(_)
                | FactKind::Gate { .. }
                | FactKind::GateWithdrawn { .. }
                | FactKind::OutputComplete
                | FactKind::UnknownLine(_) => {}
            }
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let exited_at = now();
    if !held && !status.success() {
        return Err(format!("the bare program left with {status}"));
    }
    let session = named.ok_or("the bare program named no session")?;
    let whole = match over {
        Some(over) => over,
        None if held => return Err("the bare program ended no turn".to_owned()),
        None => exited_at,
    };
    let since = |at: i64| (at - started) as f64;
    Ok(BareTurnTimes { session: since(session), input_written: since(fed), total: since(whole) })
}

#[expect(clippy::disallowed_methods, reason = "this is what the keeper is compared with")]
fn spawn(
    launch: &ProcessSpec,
    private: &str,
    workspace: &str,
    env: &[(String, String)],
) -> std::io::Result<std::process::Child> {
    for file in &launch.files {
        let path = Path::new(private).join(&file.relative_path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, &file.contents)?;
    }
    let (program, arguments) =
        launch.argv.split_first().ok_or_else(|| std::io::Error::other("a launch names a program"))?;
    let inherited = env.iter().filter(|(name, _)| !launch.removed_env.contains(name));
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(inherited.map(|(name, value)| (name, value)))
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .current_dir(workspace)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}
