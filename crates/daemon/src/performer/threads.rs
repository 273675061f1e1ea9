//! A pool of threads that read the output of processes, one thread per process.
//!
//! The readers block, so each needs a thread. Idle threads are reused by later turns. They exit after a timeout, so an
//! idle daemon has none.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use super::lock;

type ThreadTask = Box<dyn FnOnce() + Send>;

#[derive(Clone, Debug, Default)]
pub(super) struct ListenerThreads(Arc<Mutex<Vec<Arc<IdleThread>>>>);

/// The slot in which an idle thread gets its next task.
#[derive(Default)]
struct IdleThread {
    work: Mutex<Option<ThreadTask>>,
    given: Condvar,
}

/// Maximum number of idle threads, and their timeout.
const MOST: usize = 64;
const IDLE: Duration = Duration::from_secs(5);

impl ListenerThreads {
    /// Runs a task on a thread. Returns false if no thread could be created.
    pub(super) fn run(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let work: ThreadTask = Box::new(work);
        let idle = lock(&self.0).pop();
        if let Some(seat) = idle {
            seat.give(work);
            return true;
        }
        let threads = self.clone();
        let thread = std::thread::Builder::new().name("listen".to_owned());
        thread.spawn(move || threads.serve(work)).is_ok()
    }

    fn serve(&self, first: ThreadTask) {
        let seat = Arc::new(IdleThread::default());
        let mut work = first;
        loop {
            work();
            {
                let mut idle = lock(&self.0);
                if idle.len() >= MOST {
                    return;
                }
                idle.push(seat.clone());
            }
            work = match seat.wait(IDLE) {
                Some(next) => next,
                None if self.leave(&seat) => return,
                // The slot was taken from the list at this moment, so a task is about to arrive.
                None => seat.expect(),
            };
        }
    }

    /// Removes a slot from the list. Returns false if it was already taken.
    fn leave(&self, seat: &Arc<IdleThread>) -> bool {
        let mut idle = lock(&self.0);
        let place = idle.iter().position(|it| Arc::ptr_eq(it, seat));
        place.map(|place| idle.remove(place)).is_some()
    }
}

impl IdleThread {
    fn give(&self, work: ThreadTask) {
        *lock(&self.work) = Some(work);
        self.given.notify_one();
    }

    /// Waits for the next task, with a timeout.
    fn wait(&self, timeout: Duration) -> Option<ThreadTask> {
        let nothing = |work: &mut Option<ThreadTask>| work.is_none();
        let waited = self.given.wait_timeout_while(lock(&self.work), timeout, nothing);
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }

    /// Waits for a task that is certain to arrive.
    fn expect(&self) -> ThreadTask {
        let mut work = lock(&self.work);
        loop {
            if let Some(work) = work.take() {
                return work;
            }
            work = self.given.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl std::fmt::Debug for IdleThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdleThread").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_is_done_is_used_again() {
        let threads = ListenerThreads::default();
        let (told, heard) = mpsc::channel();
        for _ in 0..50 {
            let told = told.clone();
            assert!(threads.run(move || told.send(std::thread::current().id()).unwrap()));
        }
        let used: Vec<_> = heard.iter().take(50).collect();
        while lock(&threads.0).is_empty() {
            std::thread::yield_now();
        }
        let told_again = told.clone();
        assert!(threads.run(move || told_again.send(std::thread::current().id()).unwrap()));
        assert!(used.contains(&heard.recv().unwrap()));
    }
}
