//! Conversions between domain and wire types, one file per noun. No decisions are made here.

mod event;
mod interaction;
mod message;
mod run;
mod turn;

pub(super) use event::event;
pub(super) use interaction::{interaction, verdict};
pub(super) use message::{inbound, inbound_status};
pub(super) use run::{isolation, on_busy, profile_kind, run, run_at_creation, settings, status};
pub(super) use turn::turn;

use abide_domain::{failure::RunFailure, time::Timestamp};
use abide_wire::run::RunErrorView;

/// RFC 3339, UTC.
pub(super) fn time(at: Timestamp) -> String {
    let time = jiff::Timestamp::from_microsecond(at.0).unwrap_or(jiff::Timestamp::MAX);
    time.to_string()
}

pub(super) fn failure(failure: &RunFailure) -> RunErrorView {
    RunErrorView { code: serde_name(&failure.code), message: failure.message.clone() }
}

/// Returns the serde name of a unit variant.
pub(super) fn serde_name(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(_) | Err(_) => String::new(),
    }
}
