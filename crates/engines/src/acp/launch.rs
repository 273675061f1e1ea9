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

use super::requests;
use crate::launch_builder::LaunchBuilder;

const SECOND_MICROS: i64 = 1_000_000;
const MINUTE_MICROS: i64 = 60 * SECOND_MICROS;

/// Part of the probe's result for agents that can resume a session without loading it.
pub(super) const RESUME_PROBE_DETAIL: &str = "it offers session/resume";

/// Maximum time between the recorded start of a session and the creation of its file, because the program has to start
/// first.
const MAX_CREATION_DELAY_MICROS: i64 = 10 * SECOND_MICROS;

pub(super) fn launch(context: &LaunchContext<'_>) -> Result<ProcessSpec, UnsupportedOperation> {
    let mut launch = LaunchBuilder::new(context);
    launch.configured_args();
    launch.spec.stdin = initialize_stdin();
    launch.spec.not_before = not_before(context);
    Ok(launch.spec)
}

/// The first request to each agent.
pub(crate) fn initialize_stdin() -> ProcessStdin {
    ProcessStdin::KeptOpen(requests::initialize())
}

/// The time before which the session of this launch must not be loaded.
pub(crate) fn not_before(context: &LaunchContext<'_>) -> Option<Timestamp> {
    if context.resume_detail.starts_with(RESUME_PROBE_DETAIL) {
        return None;
    }
    let created_at = context.session_started_at?.0.saturating_add(MAX_CREATION_DELAY_MICROS);
    let next_minute = created_at.div_euclid(MINUTE_MICROS).saturating_add(1).saturating_mul(MINUTE_MICROS);
    Some(Timestamp(next_minute.saturating_add(SECOND_MICROS)))
}
