//! Call tickets: they pair a call with the type of its result, so that a reply of another type does not compile.

use std::marker::PhantomData;

use crate::call::{CallReply, TerminalEvent};
use crate::error::TerminalError;
use crate::handle::RuntimeClient;

/// Identifies a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId {
    pub client: RuntimeClient,
    /// Unique for the client.
    pub number: u64,
}

/// Identifies a call whose result is an `R`.
pub struct CallTicket<R> {
    id: CallId,
    result: PhantomData<fn() -> R>,
}

impl<R> CallTicket<R> {
    pub fn new(id: CallId) -> Self {
        Self { id, result: PhantomData }
    }

    pub fn id(self) -> CallId {
        self.id
    }
}

impl<R: TerminalCallResult> CallTicket<R> {
    pub(crate) fn reply(self, result: Result<R, TerminalError>) -> TerminalEvent {
        R::event(CallReply { ticket: self, result: Box::new(result) })
    }

    pub(crate) fn id_and_failure(self) -> (CallId, FailureEvent) {
        (self.id, |id, error| Self::new(id).reply(Err(error)))
    }
}

/// Makes the event of a failed call.
pub(crate) type FailureEvent = fn(CallId, TerminalError) -> TerminalEvent;

impl<R> Clone for CallTicket<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for CallTicket<R> {}

impl<R> PartialEq for CallTicket<R> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<R> Eq for CallTicket<R> {}

impl<R> std::fmt::Debug for CallTicket<R> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(formatter)
    }
}

/// The result of a call.
pub trait TerminalCallResult: Sized + 'static {
    /// The event that delivers the reply.
    fn event(reply: CallReply<Self>) -> TerminalEvent;

    /// The result in an event of its call; None for events of other calls.
    fn from_event(event: TerminalEvent) -> Option<Result<Self, TerminalError>>;
}
