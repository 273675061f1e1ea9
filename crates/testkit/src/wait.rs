//! Bounded waits for conditions without an event, such as the exit of a process or the creation of a file.
//!
//! If there is an event, wait for it instead. The timeout is far above the time a loaded machine needs. It turns a
//! hanging test into a failure with a message.

use std::time::{Duration, Instant};

/// The timeout of a condition.
pub const LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls a condition until it holds; panics with `what` after [`LIMIT`].
#[track_caller]
pub fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    until_some(condition, || holds().then_some(()));
}

/// Polls until `probe` returns a value; panics with `what` after [`LIMIT`].
#[track_caller]
pub fn until_some<T>(condition: &str, probe: impl FnMut() -> Option<T>) -> T {
    match poll(LIMIT, probe) {
        Some(value) => value,
        None => panic!("not within {LIMIT:?}: {condition}"),
    }
}

/// Like [`until`], for an asynchronous condition.
pub async fn until_async(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !holds().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    assert!(waited.await.is_ok(), "not within {LIMIT:?}: {condition}");
}

/// Sleeps, for a caller that bounds its own number of polls.
#[expect(clippy::disallowed_methods, reason = "the one place where tests sleep")]
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

#[expect(clippy::disallowed_methods, reason = "the wait ends after a duration")]
fn poll<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        if start.elapsed() > limit {
            return None;
        }
        sleep(POLL_INTERVAL);
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
