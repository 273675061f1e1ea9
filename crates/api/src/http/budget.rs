//! Bytes of answers under way: how many wait in memory until clients take them, for each credential and in all.
//!
//! A reservation is made before an answer is read or written out, and ends when the client has taken nearly all of it.
//! Who finds no room waits; a client that takes nothing is cut off by the server's patience and gives its room back.

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

/// The bytes of all answers that are under way.
const MAX_BYTES: usize = 64 << 20;
/// Those of one credential.
const MAX_BYTES_OF_ONE: usize = 32 << 20;
/// What permits count: a semaphore counts less than bytes.
const UNIT: usize = 1 << 10;
/// In pieces of this size answers are passed on.
const PIECE: usize = 64 << 10;

/// Room for answers.
#[derive(Debug)]
pub(super) struct ByteBudget {
    all: Arc<Semaphore>,
    of_one: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    /// The unread bytes of all WebSockets, which hold back their sources and so need no reservation.
    streamed: AtomicUsize,
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub(super) struct ByteReservation {
    of_one: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
}

impl ByteReservation {
    /// Gives room back beyond so many bytes.
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
    /// Waits for room for so many bytes; one answer never needs more than a credential may have.
    pub(super) async fn reserve(&self, credential: &Arc<str>, bytes: usize) -> Option<ByteReservation> {
        let units = u32::try_from(bytes.clamp(1, MAX_BYTES_OF_ONE).div_ceil(UNIT)).ok()?;
        let of_one = self.of_one(credential);
        // The semaphores are never closed.
        let of_one = of_one.acquire_many_owned(units).await.ok()?;
        let of_all = self.all.clone().acquire_many_owned(units).await.ok()?;
        Some(ByteReservation { of_one, of_all })
    }

    fn of_one(&self, credential: &Arc<str>) -> Arc<Semaphore> {
        let mut known = self.of_one.lock().unwrap_or_else(PoisonError::into_inner);
        // A credential with nothing under way needs no entry.
        known.retain(|_, room| Arc::strong_count(room) > 1);
        known
            .entry(credential.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(MAX_BYTES_OF_ONE / UNIT)))
            .clone()
    }

    /// Counts unread bytes of a WebSocket; whether there is room for more of all WebSockets.
    pub(super) fn add_streamed(&self, bytes: usize) -> bool {
        self.streamed.fetch_add(bytes, Ordering::AcqRel) + bytes < MAX_BYTES
    }

    pub(super) fn remove_streamed(&self, bytes: usize) {
        self.streamed.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// A body that keeps its reservation, as far as it needs it, until its last piece is passed on.
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
