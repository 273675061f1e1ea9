//! Memory budget for responses that clients have not yet received, per credential and in total.
//!
//! Bytes are reserved before a response is read or serialised, and released when the client has received nearly all of
//! it. A request without budget waits. A client that does not read is disconnected by the server's timeout, which
//! releases its bytes.

use std::{
    collections::HashMap,
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit for all responses together.
const MAX_BYTES: usize = 64 << 20;
/// Limit for the responses of one credential.
const MAX_BYTES_OF_ONE: usize = 32 << 20;
/// Bytes per semaphore permit: a semaphore cannot count individual bytes up to the limit.
const UNIT: usize = 1 << 10;
/// Size of the pieces in which a response is sent.
const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct ByteBudget {
    all: Arc<Semaphore>,
    of_one: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    /// Unread bytes of all WebSockets. They need no reservation, because they apply backpressure to their sources.
    streamed: AtomicUsize,
}

/// Reserved bytes, released on drop.
#[derive(Debug)]
pub(super) struct ByteReservation {
    of_one: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
}

impl ByteReservation {
    /// Releases the reservation in excess of `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let units = bytes.div_ceil(UNIT).max(1);
        for permit in [&mut self.of_one, &mut self.of_all] {
            drop(permit.split(permit.num_permits().saturating_sub(units)));
        }
    }
}

impl Default for ByteBudget {
    fn default() -> Self {
        let all = Arc::new(Semaphore::new(MAX_BYTES / UNIT));
        Self { all, of_one: Mutex::default(), streamed: AtomicUsize::new(0) }
    }
}

impl ByteBudget {
    /// Waits until `bytes` can be reserved. A response larger than the credential's limit reserves the limit.
    pub(super) async fn reserve(&self, credential: &Arc<str>, bytes: usize) -> Option<ByteReservation> {
        let units = u32::try_from(bytes.clamp(1, MAX_BYTES_OF_ONE).div_ceil(UNIT)).ok()?;
        let of_one = self.of_one(credential);
        // The semaphores are never closed, so `acquire` does not fail.
        let of_one = of_one.acquire_many_owned(units).await.ok()?;
        let of_all = self.all.clone().acquire_many_owned(units).await.ok()?;
        Some(ByteReservation { of_one, of_all })
    }

    fn of_one(&self, credential: &Arc<str>) -> Arc<Semaphore> {
        let mut known = self.of_one.lock().unwrap_or_else(PoisonError::into_inner);
        // Entries of credentials without reservations are removed.
        known.retain(|_, room| Arc::strong_count(room) > 1);
        known
            .entry(credential.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(MAX_BYTES_OF_ONE / UNIT)))
            .clone()
    }

    /// Counts unread bytes of a WebSocket. Returns whether the total for all WebSockets is below the limit.
    pub(super) fn add_streamed(&self, bytes: usize) -> bool {
        self.streamed.fetch_add(bytes, Ordering::AcqRel) + bytes < MAX_BYTES
    }

    pub(super) fn remove_streamed(&self, bytes: usize) {
        self.streamed.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// Creates a body that holds its reservation until its last piece is sent, shrinking it as pieces are sent.
pub(super) fn body(bytes: Vec<u8>, mut reservation: Option<ByteReservation>) -> Body {
    if let Some(reservation) = &mut reservation {
        reservation.shrink_to(bytes.len());
    }
    Body::new(ReservedBody { rest: Bytes::from(bytes), _reservation: reservation })
}

struct ReservedBody {
    rest: Bytes,
    _reservation: Option<ByteReservation>,
}

impl HttpBody for ReservedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn one_credential_waits_for_itself_and_others_have_room() {
        let budget = ByteBudget::default();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let first = budget.reserve(&one, MAX_BYTES_OF_ONE).await.unwrap();
        assert!(timeout(Duration::from_millis(20), budget.reserve(&one, 1)).await.is_err());
        let second = budget.reserve(&other, MAX_BYTES).await.unwrap();
        let third: Arc<str> = "third".into();
        assert!(timeout(Duration::from_millis(20), budget.reserve(&third, 1)).await.is_err(), "all is taken");
        drop(second);
        budget.reserve(&third, 1).await.unwrap();
        drop(first);
        budget.reserve(&one, 1).await.unwrap();
        assert!(budget.of_one.lock().unwrap().len() <= 2, "credentials without answers are forgotten");
    }

    #[tokio::test]
    async fn a_body_is_whole_and_gives_its_room_back() {
        let budget = ByteBudget::default();
        let one: Arc<str> = "one".into();
        let reservation = budget.reserve(&one, MAX_BYTES_OF_ONE).await;
        let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
        let body = body(bytes.clone(), reservation);
        let all = budget.reserve(&one, MAX_BYTES_OF_ONE);
        assert!(timeout(Duration::from_millis(20), all).await.is_err(), "the body takes its own length");
        drop(
            budget.reserve(&one, MAX_BYTES_OF_ONE - (1 << 20)).await.expect("the rest is given back at once"),
        );
        assert_eq!(axum::body::to_bytes(body, usize::MAX).await.unwrap(), bytes);
        budget.reserve(&one, MAX_BYTES_OF_ONE).await.unwrap();
    }
}
