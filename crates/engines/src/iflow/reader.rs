//! Interprets the output of iFlow: all of it is the answer, except the `<Execution Info>` block at its end.
//!
//! No line reports the outcome of the turn. It has succeeded if the process exited with 0, printed an answer, and
//! printed the block, which it does at the end. The block is on standard output or, in one version, on standard error,
//! which is read after the exit.

use abide_domain::{failure::RunFailure, process::ExitStatus};
use abide_ports::engine::{FactKind, ProcessExit};

use super::messages::{begins_block, split};
use crate::{
    failure::{exit_without_result, exited_voluntarily, resume_failed, stderr_tail},
    line_protocol::FactSink,
    lines::MAX_LINE_BYTES,
    one_shot::{OneShotProtocol, OneShotTurn},
};

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct IFlowReader {
    /// The complete output.
    text: String,
    /// Whether a block has begun. Later lines are not reported as progress.
    in_block: bool,
}

impl IFlowReader {
    /// Appends a line, up to the size limit of a line of other engines. The rest is dropped.
    fn append_line(&mut self, line: &str) {
        if self.text.len() + line.len() < MAX_LINE_BYTES {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }
}

impl OneShotProtocol for IFlowReader {
    const VERSION: &'static str = "iflow/2";

    fn on_line(&mut self, line: &[u8], _turn: &mut OneShotTurn, facts: &mut FactSink) -> Option<()> {
        let line = String::from_utf8_lossy(line);
        self.in_block = self.in_block || begins_block(&line);
        if !self.in_block {
            facts.push(FactKind::Text(line.clone().into_owned()));
        }
        self.append_line(&line);
        Some(())
    }

    fn on_blank_line(&mut self) {
        self.append_line("");
    }

    fn on_exit(&mut self, exit: &ProcessExit<'_>, turn: &mut OneShotTurn, facts: &mut FactSink) {
        let stderr = String::from_utf8_lossy(exit.stderr);
        let (answer, info) = match split(&self.text) {
            Some((answer, info)) => (answer, Some(info)),
            None => (self.text.as_str(), split(&stderr).map(|(_, info)| info)),
        };
        turn.answer = answer.trim().to_owned();
        turn.completed = info.is_some() && !turn.answer.is_empty();
        if let Some(id) = info.and_then(|info| info.session_id) {
            // An invalid id is ignored.
            turn.on_session_id(&id, facts);
        }
    }

    fn failure(&self, turn: &OneShotTurn, exit: &ProcessExit<'_>) -> RunFailure {
        let failed_silently = exit.status != ExitStatus::Code(0) && self.text.trim().is_empty();
        if turn.resumes && exited_voluntarily(exit) && failed_silently {
            return resume_failed("the session", &stderr_tail(exit.stderr));
        }
        exit_without_result(exit)
    }
}
