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
    authenticated: Arc<Semaphore>,
    max_unauthenticated: usize,
    unauthenticated: Mutex<UnauthenticatedConnections>,
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
    Unauthenticated,
    Authenticated,
    Evicted,
}

/// The slot of one connection. Dropping it releases the slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    auth_state: watch::Sender<ConnectionAuthState>,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

/// All slots for authenticated connections are in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimitReached;

impl ConnectionLimiter {
    /// Allows `max_connections` authenticated connections, and an eighth of that (8 to 128) unauthenticated ones.
    pub(super) fn new(max_connections: usize) -> Arc<Self> {
        Arc::new(Self {
            authenticated: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            max_unauthenticated: (max_connections / 8).clamp(8, 128),
            unauthenticated: Mutex::default(),
        })
    }

    /// Admits a new connection. If the unauthenticated share is full, its oldest connection is closed.
    pub(super) fn admit(self: &Arc<Self>) -> Arc<ConnectionPermit> {
        let auth_state = watch::Sender::new(ConnectionAuthState::Unauthenticated);
        let mut unauthenticated = self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner);
        unauthenticated.last_number += 1;
        let number = unauthenticated.last_number;
        unauthenticated.connections.insert(number, auth_state.clone());
        if unauthenticated.connections.len() > self.max_unauthenticated
            && let Some((_, oldest)) = unauthenticated.connections.pop_first()
        {
            oldest.send_replace(ConnectionAuthState::Evicted);
        }
        drop(unauthenticated);
        Arc::new(ConnectionPermit { limiter: self.clone(), number, auth_state, permit: Mutex::default() })
    }

    fn remove_unauthenticated(&self, number: u64) {
        let mut unauthenticated = self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner);
        unauthenticated.connections.remove(&number);
    }
}

impl ConnectionPermit {
    /// Moves the connection to the authenticated share.
    pub(super) fn mark_authenticated(&self) -> Result<(), ConnectionLimitReached> {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            *permit = Some(
                self.limiter.authenticated.clone().try_acquire_owned().map_err(|_| ConnectionLimitReached)?,
            );
            self.limiter.remove_unauthenticated(self.number);
            self.auth_state.send_replace(ConnectionAuthState::Authenticated);
        }
        Ok(())
    }

    /// Completes when the connection must be closed: its authentication timeout has passed, or it was evicted.
    pub(super) async fn wait_for_expiry(&self, limit: Duration) {
        let mut auth_state = self.auth_state.subscribe();
        let is_authenticated = {
            let decided =
                auth_state.wait_for(|auth_state| *auth_state != ConnectionAuthState::Unauthenticated);
            matches!(timeout(limit, decided).await, Ok(Ok(auth_state)) if *auth_state == ConnectionAuthState::Authenticated)
        };
        if is_authenticated {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.remove_unauthenticated(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn the_oldest_connection_without_a_credential_makes_room_for_the_newest() {
        let limiter = ConnectionLimiter::new(16);
        let first = limiter.admit();
        let proven = limiter.admit();
        assert_eq!(proven.mark_authenticated(), Ok(()));
        let others: Vec<_> = (0..8).map(|_| limiter.admit()).collect();
        first.wait_for_expiry(LONG_TIMEOUT).await;
        let proven_expires = timeout(Duration::from_millis(20), proven.wait_for_expiry(Duration::ZERO)).await;
        assert!(proven_expires.is_err(), "it has a place of its own");
        for kept in &others {
            assert!(timeout(Duration::ZERO, kept.wait_for_expiry(LONG_TIMEOUT)).await.is_err());
        }
        drop(others);
        assert_eq!(limiter.unauthenticated.lock().unwrap().connections.len(), 0);
    }

    #[tokio::test]
    async fn an_unauthenticated_connection_expires() {
        let limiter = ConnectionLimiter::new(16);
        let silent = limiter.admit();
        assert!(timeout(Duration::ZERO, silent.wait_for_expiry(LONG_TIMEOUT)).await.is_err());
        silent.wait_for_expiry(Duration::from_millis(20)).await;
    }

    #[test]
    fn slots_are_limited_and_released() {
        let limiter = ConnectionLimiter::new(1);
        let one = limiter.admit();
        assert_eq!(
            (one.mark_authenticated(), one.mark_authenticated()),
            (Ok(()), Ok(())),
            "one connection has one place"
        );
        let other = limiter.admit();
        assert_eq!(other.mark_authenticated(), Err(ConnectionLimitReached));
        drop(one);
        assert_eq!(other.mark_authenticated(), Ok(()));
    }
}
