//! Memory budgets, per credential and in total: for responses that clients have not yet received, and for large requests
//! that are being received.
//!
//! Bytes are reserved before a response is read or serialised, and released when the client's connection has sent the
//! last of them. A request without budget waits. A client that does not read is disconnected by the server's timeout, which
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
const MAX_TOTAL_BYTES: usize = 48 << 20;
/// Limit for the responses of one credential.
const MAX_CREDENTIAL_BYTES: usize = 24 << 20;
/// The same limits for events of streams, which may stay unread for longer than a response.
const MAX_STREAM_BYTES: usize = 16 << 20;
const MAX_STREAM_BYTES_OF_ONE: usize = 8 << 20;
/// The same limits for large requests that are being received.
const MAX_RECEIVED_BYTES: usize = 16 << 20;
const MAX_RECEIVED_BYTES_OF_ONE: usize = 8 << 20;
/// Bytes per semaphore permit: a semaphore cannot count individual bytes up to the limit.
const BYTES_PER_PERMIT: usize = 1 << 10;
/// Size of the pieces in which a response is sent.
const SEND_CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct ByteBudget {
    total: Arc<Semaphore>,
    max_bytes_of_one: usize,
    per_credential: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// Counts bytes of all WebSockets. They need no reservation: above the limit, the clients that hold most are paused.
#[derive(Debug)]
pub(super) struct ByteCounter {
    bytes: AtomicUsize,
    max_bytes: usize,
}

impl ByteCounter {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), max_bytes }
    }

    /// Returns whether the total is below the limit.
    pub(super) fn add(&self, bytes: usize) -> bool {
        self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes < self.max_bytes
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Acquire) < self.max_bytes
    }
}

/// Reserved bytes, released on drop.
#[derive(Debug)]
pub(super) struct ByteReservation {
    credential_permit: OwnedSemaphorePermit,
    total_permit: OwnedSemaphorePermit,
}

impl ByteReservation {
    /// Releases the reservation in excess of `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let units = bytes.div_ceil(BYTES_PER_PERMIT).max(1);
        for permit in [&mut self.credential_permit, &mut self.total_permit] {
            drop(permit.split(permit.num_permits().saturating_sub(units)));
        }
    }
}

impl ByteBudget {
    pub(super) fn new(max_bytes: usize, max_bytes_of_one: usize) -> Self {
        let all = Arc::new(Semaphore::new(max_bytes / BYTES_PER_PERMIT));
        Self { total: all, max_bytes_of_one, per_credential: Mutex::default() }
    }

    pub(super) fn of_responses() -> Self {
        Self::new(MAX_TOTAL_BYTES, MAX_CREDENTIAL_BYTES)
    }

    pub(super) fn of_streams() -> Self {
        Self::new(MAX_STREAM_BYTES, MAX_STREAM_BYTES_OF_ONE)
    }

    pub(super) fn of_received() -> Self {
        Self::new(MAX_RECEIVED_BYTES, MAX_RECEIVED_BYTES_OF_ONE)
    }

    /// Waits until `bytes` can be reserved. A response larger than the credential's limit reserves the limit.
    pub(super) async fn reserve(&self, credential: &Arc<str>, bytes: usize) -> Option<ByteReservation> {
        let units = self.units(bytes);
        let of_one = self.credential_semaphore(credential);
        // The semaphores are never closed, so `acquire` does not fail.
        let of_one = of_one.acquire_many_owned(units).await.ok()?;
        let of_all = self.total.clone().acquire_many_owned(units).await.ok()?;
        Some(ByteReservation { credential_permit: of_one, total_permit: of_all })
    }

    /// Reserves `bytes` if they are available now and no other request waits for them.
    pub(super) fn try_reserve(&self, credential: &Arc<str>, bytes: usize) -> Option<ByteReservation> {
        let units = self.units(bytes);
        let of_one = self.credential_semaphore(credential).try_acquire_many_owned(units).ok()?;
        let of_all = self.total.clone().try_acquire_many_owned(units).ok()?;
        Some(ByteReservation { credential_permit: of_one, total_permit: of_all })
    }

    fn units(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.clamp(1, self.max_bytes_of_one).div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX)
    }

    fn credential_semaphore(&self, credential: &Arc<str>) -> Arc<Semaphore> {
        let mut semaphores = self.per_credential.lock().unwrap_or_else(PoisonError::into_inner);
        // Entries of credentials without reservations are removed.
        semaphores.retain(|_, room| Arc::strong_count(room) > 1);
        semaphores
            .entry(credential.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(self.max_bytes_of_one / BYTES_PER_PERMIT)))
            .clone()
    }
}

/// Creates a body that holds its reservation until its last piece is sent.
pub(super) fn reserved_body(bytes: Vec<u8>, reservation: Option<ByteReservation>) -> Body {
    Body::new(ReservedBody { rest: reserved_bytes(bytes, reservation) })
}

/// Creates bytes that hold their reservation, reduced to their length, until the last slice of them is dropped. The
/// write buffer of a connection holds slices until they are sent.
pub(super) fn reserved_bytes(mut bytes: Vec<u8>, mut reservation: Option<ByteReservation>) -> Bytes {
    bytes.shrink_to_fit();
    if let Some(reservation) = &mut reservation {
        reservation.shrink_to(bytes.len());
    }
    Bytes::from_owner(ReservedBytes { bytes, _reservation: reservation })
}

struct ReservedBytes {
    bytes: Vec<u8>,
    _reservation: Option<ByteReservation>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct ReservedBody {
    rest: Bytes,
}

impl HttpBody for ReservedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(SEND_CHUNK_BYTES);
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
        let budget = ByteBudget::of_responses();
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let first = budget.reserve(&one, MAX_CREDENTIAL_BYTES).await.unwrap();
        assert!(timeout(Duration::from_millis(20), budget.reserve(&one, 1)).await.is_err());
        let second = budget.reserve(&other, MAX_TOTAL_BYTES).await.unwrap();
        let third: Arc<str> = "third".into();
        assert!(timeout(Duration::from_millis(20), budget.reserve(&third, 1)).await.is_err(), "all is taken");
        drop(second);
        budget.reserve(&third, 1).await.unwrap();
        drop(first);
        budget.reserve(&one, 1).await.unwrap();
        assert!(
            budget.per_credential.lock().unwrap().len() <= 2,
            "credentials without answers are forgotten"
        );
    }

    #[tokio::test]
    async fn a_body_is_whole_and_gives_its_room_back() {
        let budget = ByteBudget::of_responses();
        let one: Arc<str> = "one".into();
        let reservation = budget.reserve(&one, MAX_CREDENTIAL_BYTES).await;
        let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
        let body = reserved_body(bytes.clone(), reservation);
        let all = budget.reserve(&one, MAX_CREDENTIAL_BYTES);
        assert!(timeout(Duration::from_millis(20), all).await.is_err(), "the body takes its own length");
        drop(
            budget
                .reserve(&one, MAX_CREDENTIAL_BYTES - (1 << 20))
                .await
                .expect("the rest is given back at once"),
        );
        assert_eq!(axum::body::to_bytes(body, usize::MAX).await.unwrap(), bytes);
        budget.reserve(&one, MAX_CREDENTIAL_BYTES).await.unwrap();
    }
}
