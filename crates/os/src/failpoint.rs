//! Failpoints: named positions at which a crash test can interrupt the program.
//!
//! Without the feature `failpoints`, which no release has, [`reach`] is empty and there is nothing to install. With the
//! feature, the installed hook decides what happens at a position. `FailpointPlan` is the hook of the crash tests: it
//! counts and logs the positions, and reports the chosen one.

#[cfg(feature = "failpoints")]
pub use enabled::{FailpointPlan, install, kill_this_process};

/// Whether a hook is installed. Always false without the feature.
#[inline]
pub fn is_installed() -> bool {
    #[cfg(feature = "failpoints")]
    return enabled::has_hook();
    #[cfg(not(feature = "failpoints"))]
    false
}

/// Called at the failpoint `name`.
#[inline]
pub fn reach(name: &'static str) {
    reach_for(name, "");
}

/// Called at the failpoint `name` in the work for `subject`, such as the id of a session.
#[inline]
pub fn reach_for(name: &'static str, subject: &str) {
    #[cfg(feature = "failpoints")]
    enabled::call_hook(name, subject);
    #[cfg(not(feature = "failpoints"))]
    let _ = (name, subject);
}

#[cfg(feature = "failpoints")]
mod enabled {
    use std::{
        collections::BTreeMap,
        fs::File,
        io::Write,
        sync::{Mutex, OnceLock, PoisonError},
    };

    /// Gets the name of the failpoint and the subject of the work.
    type FailpointHook = Box<dyn Fn(&'static str, &str) + Send + Sync>;

    static HOOK: OnceLock<FailpointHook> = OnceLock::new();

    /// Installs the hook that is called at each failpoint. Only the first hook counts.
    pub fn install(hook: impl Fn(&'static str, &str) + Send + Sync + 'static) {
        // An error means that a hook is installed; it stays.
        HOOK.set(Box::new(hook)).ok();
    }

    pub(super) fn has_hook() -> bool {
        HOOK.get().is_some()
    }

    pub(super) fn call_hook(name: &'static str, subject: &str) {
        if let Some(hook) = HOOK.get() {
            hook(name, subject);
        }
    }

    /// Counts the failpoints of a process, logs each as a line `NAME:COUNT`, and recognises the chosen one.
    #[derive(Debug)]
    pub struct FailpointPlan {
        /// The name and the count, which begins with 1. `None` only counts.
        chosen: Option<(String, u64)>,
        counts: Mutex<BTreeMap<&'static str, u64>>,
        log: File,
    }

    impl FailpointPlan {
        /// Creates a plan from a text such as `after_commit:7`. Returns `None` if the text is malformed or its name is
        /// not one of `names`.
        pub fn parse(text: Option<&str>, names: &[&str], log: File) -> Option<Self> {
            let chosen = match text {
                Some(text) => {
                    let (name, count) = text.split_once(':')?;
                    let name = names.iter().find(|candidate| **candidate == name)?;
                    Some(((*name).to_owned(), count.parse().ok()?))
                }
                None => None,
            };
            Some(Self { chosen, counts: Mutex::default(), log })
        }

        /// Records that a failpoint was reached, and calls `act` if it is the chosen one. Other threads that reach a
        /// failpoint wait until `act` has returned.
        pub fn record(&self, name: &'static str, act: impl FnOnce(&mut dyn Write)) {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(name).or_default();
            *count += 1;
            // A missing line fails the test that reads the log.
            writeln!(&self.log, "{name}:{count}").ok();
            if self.chosen.as_ref().is_some_and(|(chosen, at)| chosen == name && at == count) {
                act(&mut &self.log);
            }
        }
    }

    /// Kills this process as a power failure would: without any cleanup.
    pub fn kill_this_process() -> ! {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).ok();
        // Waits for the signal to be delivered.
        loop {
            std::thread::park();
        }
    }
}

#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use super::FailpointPlan;

    const NAMES: &[&str] = &["before_write", "after_write"];

    #[test]
    fn the_chosen_failpoint_is_recognised_by_name_and_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = std::fs::File::create(&path).unwrap();
        let plan = FailpointPlan::parse(Some("after_write:2"), NAMES, log).unwrap();
        for name in ["after_write", "before_write", "before_write", "after_write", "after_write"] {
            plan.record(name, |log| writeln!(log, "acted").unwrap());
        }
        let expected = "after_write:1\nbefore_write:1\nbefore_write:2\nafter_write:2\nacted\nafter_write:3\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_malformed_or_unknown_failpoint_is_refused() {
        for text in ["after_write", "after_write:", "after_write:x", "elsewhere:1"] {
            let log = tempfile::tempfile().unwrap();
            assert!(FailpointPlan::parse(Some(text), NAMES, log).is_none(), "{text}");
        }
        assert!(FailpointPlan::parse(None, NAMES, tempfile::tempfile().unwrap()).is_some());
    }
}
