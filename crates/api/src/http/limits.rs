//! Rate limits: a token bucket per client that refills at the configured rate and holds two seconds' worth.
//!
//! Authenticated clients, requests that need no credential, and rejected requests have separate buckets, so that none
//! can exhaust another's. The default rate is far above normal use.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::time::Instant;

/// Buckets of all clients.
#[derive(Debug)]
pub(super) struct RateLimiter {
    per_second: f64,
    buckets: Mutex<HashMap<RateLimitKey, TokenBucket>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RateLimitKey {
    /// A credential, used from an address.
    Authenticated(Arc<str>, Option<IpAddr>),
    /// An address, for routes without a credential.
    Public(Option<IpAddr>),
    /// An address, for rejected requests.
    Refused(Option<IpAddr>),
}

#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    refilled_at: Instant,
}

/// Capacity of a bucket, in seconds of the rate.
const BURST_SEC: f64 = 2.0;
/// Number of buckets above which full ones are removed.
const MAX_BUCKETS: usize = 10_000;

impl RateLimiter {
    /// Allows `per_second` requests; 0 disables the limit.
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second: f64::from(per_second), buckets: Mutex::default() }
    }

    /// Takes a token. Returns whether the request is allowed.
    pub(super) fn allow(&self, client: RateLimitKey, now: Instant) -> bool {
        if self.per_second == 0.0 {
            return true;
        }
        let full = self.per_second * BURST_SEC;
        let refilled = |bucket: &TokenBucket| {
            let since = now.saturating_duration_since(bucket.refilled_at).as_secs_f64();
            (bucket.tokens + since * self.per_second).min(full)
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS {
            buckets.retain(|_, bucket| refilled(bucket) < full);
        }
        let bucket = buckets.entry(client).or_insert(TokenBucket { tokens: full, refilled_at: now });
        bucket.tokens = refilled(bucket);
        bucket.refilled_at = now;
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use super::*;

    #[test]
    fn a_client_gets_its_burst_and_rate_independently_of_others() {
        let limits = RateLimiter::new(10);
        let here = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let one = RateLimitKey::Refused(here);
        let start = Instant::now();
        let allowed = (0..100).filter(|_| limits.allow(one.clone(), start)).count();
        assert_eq!(allowed, 20);
        let elsewhere = RateLimitKey::Refused(Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))));
        for other in
            [elsewhere, RateLimitKey::Public(here), RateLimitKey::Authenticated("owner".into(), here)]
        {
            assert!(limits.allow(other, start));
        }
        let later = start + Duration::from_millis(500);
        assert_eq!((0..100).filter(|_| limits.allow(one.clone(), later)).count(), 5);
    }

    #[test]
    fn no_limit_is_no_limit() {
        let limits = RateLimiter::new(0);
        let now = Instant::now();
        assert!((0..10_000).all(|_| limits.allow(RateLimitKey::Public(None), now)));
    }

    #[test]
    fn clients_are_forgotten_rather_than_remembered_without_end() {
        let limits = RateLimiter::new(1);
        let start = Instant::now();
        for number in 0..30_000_u32 {
            let at = start + Duration::from_secs(u64::from(number));
            assert!(limits.allow(RateLimitKey::Public(Some(IpAddr::V4(Ipv4Addr::from_bits(number)))), at));
        }
        assert!(limits.buckets.lock().unwrap().len() <= MAX_BUCKETS);
    }
}
