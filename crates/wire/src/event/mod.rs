//! Events of runs, as the event feed sends them: one struct per type of event.
//!
//! The server builds [`RunEventView`], which is the complete list. A client reads [`EventBody`], which also keeps
//! events that the client's version does not know.

mod fact;
mod request;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use fact::{
    AttemptStartedEvent, ContactLostEvent, ContactRestoredEvent, ConversationActiveEvent, DeadlineKindValue,
    DeadlinePassedEvent, DeliveryConfirmedEvent, DeliveryFailedEvent, DeliveryFailureValue,
    EffectObsoleteEvent, EffectPerformedEvent, EngineUnusableEvent, GatePurposeValue, GateRaisedEvent,
    GateWithdrawnEvent, HandleAnnouncedEvent, LaunchFailedEvent, LaunchRetryValue, ProcessExitedEvent,
    ProfileResolvedEvent, ProgressedEvent, QuestionView, RecoveryFailedEvent, SessionLostEvent,
    TurnEndedEvent, TurnOutcomeValue,
};
pub use request::{
    AdmittedEvent, CancelRequestedEvent, InterruptRequestedEvent, MessageArrivedEvent, ReplyArrivedEvent,
    RulesAdoptedEvent, RunCreatedEvent, ShutdownRequestedEvent,
};

/// An event of a run. Events are sent in the order of `seq`, without gaps for the reader.
///
/// A later version may send types that are not listed here, and may add fields. Clients should ignore both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventEnvelope {
    /// Position in the journal of all runs; never changes.
    pub seq: u64,
    pub run_id: String,
    /// Time of the commit, RFC 3339 in UTC.
    pub at: String,
    #[serde(flatten)]
    #[schema(value_type = RunEventView)]
    pub event: EventBody,
}

/// The type and the data of an event, as a client reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EventBody {
    Known(RunEventView),
    /// An event of another version. It is kept as it was received.
    Unknown(UnknownEvent),
}

impl EventBody {
    /// Returns the event, if its type is known.
    pub fn known(&self) -> Option<&RunEventView> {
        match self {
            Self::Known(event) => Some(event),
            Self::Unknown(_) => None,
        }
    }
}

/// An event whose type, or a value of whose data, is not known to this version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownEvent {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub data: serde_json::Value,
}

/// The type of an event, and the data that this type has. The state of the run is not part of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub enum RunEventView {
    RunCreated(RunCreatedEvent),
    Admitted(AdmittedEvent),
    MessageArrived(MessageArrivedEvent),
    ReplyArrived(ReplyArrivedEvent),
    InterruptRequested(InterruptRequestedEvent),
    CancelRequested(CancelRequestedEvent),
    ShutdownRequested(ShutdownRequestedEvent),
    RulesAdopted(RulesAdoptedEvent),
    ProfileResolved(ProfileResolvedEvent),
    EngineUnusable(EngineUnusableEvent),
    AttemptStarted(AttemptStartedEvent),
    LaunchFailed(LaunchFailedEvent),
    ProcessExited(ProcessExitedEvent),
    ContactLost(ContactLostEvent),
    ContactRestored(ContactRestoredEvent),
    RecoveryFailed(RecoveryFailedEvent),
    SessionLost(SessionLostEvent),
    HandleAnnounced(HandleAnnouncedEvent),
    Progressed(ProgressedEvent),
    GateRaised(GateRaisedEvent),
    GateWithdrawn(GateWithdrawnEvent),
    TurnEnded(TurnEndedEvent),
    DeadlinePassed(DeadlinePassedEvent),
    DeliveryConfirmed(DeliveryConfirmedEvent),
    DeliveryFailed(DeliveryFailedEvent),
    ConversationActive(ConversationActiveEvent),
    EffectPerformed(EffectPerformedEvent),
    EffectObsolete(EffectObsoleteEvent),
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn envelope(kind: &str, data: Value) -> Value {
        json!({ "seq": 7, "run_id": "run_1", "at": "2026-11-16T05:17:02Z", "type": kind, "data": data })
    }

    fn read(value: &Value) -> EventEnvelope {
        serde_json::from_str(&value.to_string()).expect("every event can be read")
    }

    #[test]
    fn a_known_event_is_read_into_its_own_type() {
        let value = envelope("progressed", json!({ "attempt": 1, "text": "reads files" }));
        let event = read(&value);
        let expected =
            RunEventView::Progressed(ProgressedEvent { attempt: 1, text: "reads files".to_owned() });
        assert_eq!(event.event, EventBody::Known(expected));
        assert_eq!(serde_json::to_value(&event).unwrap(), value);
    }

    #[test]
    fn an_event_of_a_later_version_is_kept_as_it_was_received() {
        for value in [
            envelope("moon_rose", json!({ "phase": "full", "height_m": 3 })),
            // A known type with a value that this version does not have.
            envelope("delivery_failed", json!({ "delivery_id": "dlv_1", "outcome": "postponed" })),
        ] {
            let event = read(&value);
            assert_eq!(event.event.known(), None);
            assert_eq!(serde_json::to_value(&event).unwrap(), value);
        }
    }

    #[test]
    fn a_field_of_a_later_version_is_ignored() {
        let value = envelope("admitted", json!({ "slot": 4 }));
        assert_eq!(read(&value).event, EventBody::Known(RunEventView::Admitted(AdmittedEvent {})));
    }
}
