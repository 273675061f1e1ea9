//! Bounded waits for conditions that send no event: a process that ends, a file that appears.
//!
//! Where there is an event, wait for that instead. The bound is far above what a loaded machine needs; reaching it is
//! a failure with a name instead of a test that hangs.

use std::time::{Duration, Instant};

/// How long a condition may take to come true.
pub const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(2);

/// Polls a condition until it holds, and panics with `what` if it does not within [`LIMIT`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_some(what, || holds().then_some(()));
}

/// Polls until there is a value, and panics with `what` if there is none within [`LIMIT`].
#[track_caller]
pub fn until_some<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    match poll(LIMIT, look) {
        Some(value) => value,
        None => panic!("not within {LIMIT:?}: {what}"),
    }
}

/// The same for a condition that is asked for asynchronously.
pub async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !holds().await {
            tokio::time::sleep(PAUSE).await;
        }
    });
    assert!(waited.await.is_ok(), "not within {LIMIT:?}: {what}");
}

#[expect(clippy::disallowed_methods, reason = "what is waited for sends no event")]
fn poll<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = look() {
            return Some(value);
        }
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_is_waited_for_and_one_that_does_not_is_given_up() {
        let mut looks = 0;
        until("it is looked at three times", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(poll(Duration::from_millis(5), || None::<()>), None);
    }
}
