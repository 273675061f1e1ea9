//! Connection limits: a small share for unauthenticated connections, the rest for authenticated ones.
//!
//! A new connection counts against the small share. Its first accepted request moves it to the authenticated share.
//! When the small share is full, its oldest connection is closed. Idle connections therefore cannot lock out a client
//! that sends its request at once. A connection that does not authenticate in time is closed too.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};

/// The connection slots of one listener.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    proven: Arc<Semaphore>,
    max_unproven: usize,
    unproven: Mutex<UnauthenticatedConnections>,
}

#[derive(Debug, Default)]
struct UnauthenticatedConnections {
    last_number: u64,
    /// Keyed by sequence number; the oldest connection has the lowest.
    connections: BTreeMap<u64, watch::Sender<ConnectionAuthState>>,
}

/// Authentication state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionAuthState {
    Unproven,
    Proven,
    Evicted,
}

/// The slot of one connection. Dropping it releases the slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    places: Arc<ConnectionLimiter>,
    number: u64,
    standing: watch::Sender<ConnectionAuthState>,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

/// All slots for authenticated connections are in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimitReached;

impl ConnectionLimiter {
    /// Allows `max_connections` authenticated connections, and an eighth of that (8 to 128) unauthenticated ones.
    pub(super) fn new(max_connections: usize) -> Arc<Self> {
        Arc::new(Self {
            proven: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            max_unproven: (max_connections / 8).clamp(8, 128),
            unproven: Mutex::default(),
        })
    }

    /// Admits a new connection. If the unauthenticated share is full, its oldest connection is closed.
    pub(super) fn admit(self: &Arc<Self>) -> Arc<ConnectionPermit> {
        let standing = watch::Sender::new(ConnectionAuthState::Unproven);
        let mut unproven = self.unproven.lock().unwrap_or_else(PoisonError::into_inner);
        unproven.last_number += 1;
        let number = unproven.last_number;
        unproven.connections.insert(number, standing.clone());
        if unproven.connections.len() > self.max_unproven
            && let Some((_, oldest)) = unproven.connections.pop_first()
        {
            oldest.send_replace(ConnectionAuthState::Evicted);
        }
        drop(unproven);
        Arc::new(ConnectionPermit { places: self.clone(), number, standing, place: Mutex::default() })
    }

    fn forget(&self, number: u64) {
        let mut unproven = self.unproven.lock().unwrap_or_else(PoisonError::into_inner);
        unproven.connections.remove(&number);
    }
}

impl ConnectionPermit {
    /// Moves the connection to the authenticated share.
    pub(super) fn prove(&self) -> Result<(), ConnectionLimitReached> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place =
                Some(self.places.proven.clone().try_acquire_owned().map_err(|_| ConnectionLimitReached)?);
            self.places.forget(self.number);
            self.standing.send_replace(ConnectionAuthState::Proven);
        }
        Ok(())
    }

    /// Completes when the connection must be closed: its authentication timeout has passed, or it was evicted.
    pub(super) async fn expired(&self, limit: Duration) {
        let mut standing = self.standing.subscribe();
        let is_proven = {
            let decided = standing.wait_for(|standing| *standing != ConnectionAuthState::Unproven);
            matches!(timeout(limit, decided).await, Ok(Ok(standing)) if *standing == ConnectionAuthState::Proven)
        };
        if is_proven {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.places.forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_oldest_connection_without_a_credential_makes_room_for_the_newest() {
        let places = ConnectionLimiter::new(16);
        let first = places.admit();
        let proven = places.admit();
        assert_eq!(proven.prove(), Ok(()));
        let others: Vec<_> = (0..8).map(|_| places.admit()).collect();
        first.expired(LONG).await;
        let proven_expires = timeout(Duration::from_millis(20), proven.expired(Duration::ZERO)).await;
        assert!(proven_expires.is_err(), "it has a place of its own");
        for kept in &others {
            assert!(timeout(Duration::ZERO, kept.expired(LONG)).await.is_err());
        }
        drop(others);
        assert_eq!(places.unproven.lock().unwrap().connections.len(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_shows_nothing_in_time_expires() {
        let places = ConnectionLimiter::new(16);
        let silent = places.admit();
        assert!(timeout(Duration::ZERO, silent.expired(LONG)).await.is_err());
        silent.expired(Duration::from_millis(20)).await;
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let places = ConnectionLimiter::new(1);
        let one = places.admit();
        assert_eq!((one.prove(), one.prove()), (Ok(()), Ok(())), "one connection has one place");
        let other = places.admit();
        assert_eq!(other.prove(), Err(ConnectionLimitReached));
        drop(one);
        assert_eq!(other.prove(), Ok(()));
    }
}
