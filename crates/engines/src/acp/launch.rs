//! Starts an ACP agent: its command, and the first request.
//!
//! A session is not loaded in the minute in which it was created. One agent names a session's file by that minute, and
//! loading the session in the same minute truncates the file and loses the session. A configured command may be a
//! wrapper, so the agent behind it is unknown before it runs. The rule therefore applies to all agents that only offer
//! `session/load`. It costs them a wait of at most one minute, once per session. The alternative is a setting, which
//! would cost users who do not know it their session. Agents that offer `session/resume` do not have this defect and
//! are started at once, because the run holds a slot during the wait. An adapter that knows its agent need not use the
//! rule.

use abide_domain::time::Timestamp;
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation};

use super::words;

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;

/// Part of the probe's result for agents that can resume a session without loading it.
pub(super) const OFFERS_RESUME: &str = "it offers session/resume";

/// Maximum time between the recorded start of a session and the creation of its file, because the program has to start
/// first.
const LATE: i64 = 10 * SECOND;

pub(super) fn launch(order: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let installation = order.installation;
    Ok(ProcessSpec {
        argv: installation.command.iter().chain(&installation.args).cloned().collect(),
        env: installation.env.clone().into_iter().collect(),
        without_env: vec![],
        appended_env: vec![],
        files: vec![],
        stdin: opening(),
        not_before: not_before(order),
        outliving: None,
    })
}

/// The first request to each agent.
pub(crate) fn opening() -> ProcessStdin {
    ProcessStdin::Open(words::initialize())
}

/// The time before which the session of this launch must not be loaded.
pub(crate) fn not_before(order: &LaunchContext<'_>) -> Option<Timestamp> {
    if order.resume_detail.starts_with(OFFERS_RESUME) {
        return None;
    }
    let begun = order.session_since?.0.saturating_add(LATE);
    let next_minute = begun.div_euclid(MINUTE).saturating_add(1).saturating_mul(MINUTE);
    Some(Timestamp(next_minute.saturating_add(SECOND)))
}
