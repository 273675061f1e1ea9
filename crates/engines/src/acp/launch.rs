//! How an agent is started: its command, and the first words of the conversation.
//!
//! A session is not loaded in the minute in which it was begun. One agent names a session's file by that minute, and
//! loading it again in the same minute empties the file: the session is lost for good. Which agent a configured
//! command really starts is only known when it runs, behind a wrapper perhaps, so the rule holds for all agents that
//! offer `session/load` alone. It costs them a wait of a minute at most, once in a session's life; the other choice, a
//! setting that the owner would have to know of, costs those who did not know their session. An agent that offers
//! `session/resume` is not that one and is started at once: the run holds a slot meanwhile. An adapter that knows its
//! agent need not use the rule.

use abide_domain::time::Timestamp;
use abide_ports::engine::{LaunchContext, ProcessSpec, ProcessStdin, UnsupportedOperation};

use super::words;

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;

/// What the probe says of an agent that resumes a session without loading it.
pub(super) const OFFERS_RESUME: &str = "it offers session/resume";

/// How long after its noted beginning a session may have made its file: the program has to start first.
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

/// What every agent reads first.
pub(crate) fn opening() -> ProcessStdin {
    ProcessStdin::Open(words::initialize())
}

/// The time before which the session of this order must not be loaded.
pub(crate) fn not_before(order: &LaunchContext<'_>) -> Option<Timestamp> {
    if order.resume_detail.starts_with(OFFERS_RESUME) {
        return None;
    }
    let begun = order.session_since?.0.saturating_add(LATE);
    let next_minute = begun.div_euclid(MINUTE).saturating_add(1).saturating_mul(MINUTE);
    Some(Timestamp(next_minute.saturating_add(SECOND)))
}
