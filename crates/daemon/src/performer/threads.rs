//! Threads that listen to processes, one for each, and are kept for a while when their process is over.
//!
//! A thread of its own is what a blocking reader wants; making one anew for every turn is what it costs. Those that wait
//! are few and go after a moment, so an idle daemon has none.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use super::lock;

type Work = Box<dyn FnOnce() + Send>;

/// Threads that have nothing to do at the moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Threads(Arc<Mutex<Vec<mpsc::Sender<Work>>>>);

/// How many wait, and for how long.
const MOST: usize = 64;
const IDLE: Duration = Duration::from_secs(5);

impl Threads {
    /// Has something done on a thread of its own. Returns false if there is none to be had.
    pub(super) fn run(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut work: Work = Box::new(work);
        // Who went away in this moment does not take the work along.
        while let Some(idle) = { lock(&self.0).pop() } {
            match idle.send(work) {
                Ok(()) => return true,
                Err(mpsc::SendError(back)) => work = back,
            }
        }
        let threads = self.clone();
        let thread = std::thread::Builder::new().name("listen".to_owned());
        thread.spawn(move || threads.serve(work)).is_ok()
    }

    fn serve(&self, first: Work) {
        let mut work = first;
        loop {
            work();
            let (sender, receiver) = mpsc::channel();
            {
                let mut idle = lock(&self.0);
                if idle.len() >= MOST {
                    return;
                }
                idle.push(sender);
            }
            work = match receiver.recv_timeout(IDLE) {
                Ok(next) => next,
                Err(_) => return,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_done_is_used_again() {
        let threads = Threads::default();
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
