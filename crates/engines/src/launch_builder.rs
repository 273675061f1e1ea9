//! Builds the process of a turn from the parts that most command lines share.

use abide_domain::effect::LaunchSession;
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation};

use crate::{argument, command_line::installation_env};

/// A process under construction. Arguments are added in the order of the calls.
pub(crate) struct LaunchBuilder<'a> {
    context: &'a LaunchContext<'a>,
    /// The parts without a method are set directly.
    pub(crate) spec: ProcessSpec,
}

impl<'a> LaunchBuilder<'a> {
    /// The installed program with its environment. The prompt is its complete standard input.
    pub(crate) fn new(context: &'a LaunchContext<'a>) -> Self {
        let spec = ProcessSpec {
            argv: context.installation.command.clone(),
            env: installation_env(context.installation),
            removed_env: vec![],
            appended_env: vec![],
            files: vec![],
            stdin: ProcessStdin::Complete(context.prompt.as_bytes().to_vec()),
            not_before: None,
            surviving_keepers_dir: None,
        };
        Self { context, spec }
    }

    pub(crate) fn args(&mut self, args: &[&str]) {
        self.spec.argv.extend(args.iter().map(|&arg| arg.to_owned()));
    }

    /// Adds `--sandbox` with the name of the run's sandbox, if it has one.
    pub(crate) fn sandbox_arg(&mut self) {
        if let Some(sandbox) = self.context.sandbox {
            self.args(&["--sandbox", sandbox.name()]);
        }
    }

    /// Adds `--model` with the run's model, if it has one.
    pub(crate) fn model_arg(&mut self) -> Result<(), UnsupportedOperation> {
        if let Some(model) = argument::model(self.context)? {
            self.args(&["--model", model]);
        }
        Ok(())
    }

    /// Adds the arguments that the owner configured.
    pub(crate) fn configured_args(&mut self) {
        self.spec.argv.extend(self.context.installation.args.iter().cloned());
    }

    /// Adds `--session-id` for a session that gets its id from us, or `--resume`. `is_id` recognises ids that the
    /// program takes for nothing else.
    pub(crate) fn session_args(&mut self, is_id: fn(&str) -> bool) -> Result<(), UnsupportedOperation> {
        let (option, handle) = match self.context.session {
            LaunchSession::New => return Ok(()),
            LaunchSession::Named(handle) => ("--session-id", handle),
            LaunchSession::Resumed(handle) => ("--resume", handle),
        };
        let id = argument::session_id(handle, "session id", is_id)?;
        self.args(&[option, id]);
        Ok(())
    }
}
