//! Places for connections: a small share for connections that have shown no credential, the rest for those that have.
//!
//! A new connection begins in the small share. Its first request that the guard accepts moves it to a place of its own.
//! When the small share is full, the oldest connection in it is closed: a client that sends its request at once is
//! served, however many silent connections there are. A connection that shows nothing in time is closed too.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};

/// The places of one listener.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    proven: Arc<Semaphore>,
    max_unproven: usize,
    unproven: Mutex<UnauthenticatedConnections>,
}

#[derive(Debug, Default)]
struct UnauthenticatedConnections {
    last_number: u64,
    /// The oldest has the lowest number.
    connections: BTreeMap<u64, watch::Sender<ConnectionAuthState>>,
}

/// How a connection stands with its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionAuthState {
    Unproven,
    Proven,
    Evicted,
}

/// One connection's place, given back when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    places: Arc<ConnectionLimiter>,
    number: u64,
    standing: watch::Sender<ConnectionAuthState>,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

/// Every place for clients that have shown a credential is taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimitReached;

impl ConnectionLimiter {
    /// So many connections with a credential, and an eighth of that (8 to 128) without one.
    pub(super) fn new(max_connections: usize) -> Arc<Self> {
        Arc::new(Self {
            proven: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            max_unproven: (max_connections / 8).clamp(8, 128),
            unproven: Mutex::default(),
        })
    }

    /// Takes a new connection in, at the cost of the oldest one that has shown nothing if there are too many.
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
    /// Moves the connection to a place of its own, because its client has shown a credential.
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

    /// Ends when the connection has to be closed because it has shown nothing: its time is over, or others need the room.
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
