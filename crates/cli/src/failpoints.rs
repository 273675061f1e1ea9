//! Lets the daemon die at a place that a test chose, as if the power had failed. Only in builds with the feature
//! `failpoints`, which are never shipped.
//!
//! `SIEGE_FAILPOINT=after_commit:7` kills this process right after its seventh commit; the other places are
//! `before_commit` and `order_carried_out`. Each place that is reached is a line in the home's `failpoints`, so that a run
//! without a death tells how many there are.

use std::{
    fs::File,
    io::Write,
    sync::{Mutex, OnceLock, PoisonError},
};

use abide_daemon::failpoint::{self, Point};
use anyhow::Context;

use crate::home;

/// Where to die, how often each place was reached, and where that is told.
struct Watch {
    place: Option<(Point, u64)>,
    reached: Mutex<[u64; 3]>,
    log: File,
}

static WATCH: OnceLock<Watch> = OnceLock::new();

/// Reads where to die from the environment.
pub(crate) fn install() -> anyhow::Result<()> {
    let place = match home::variable("SIEGE_FAILPOINT") {
        Some(text) => {
            Some(parse(&text).with_context(|| format!("cannot understand SIEGE_FAILPOINT={text}"))?)
        }
        None => None,
    };
    let path = home::home()?.join("failpoints");
    std::fs::create_dir_all(home::home()?)?;
    let log = File::options().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("cannot open {}", path.display()))?;
    let _the_first_counts = WATCH.set(Watch { place, reached: Mutex::default(), log });
    failpoint::install(reached);
    Ok(())
}

fn parse(text: &str) -> Option<(Point, u64)> {
    let (name, number) = text.split_once(':')?;
    let point = [Point::BeforeCommit, Point::AfterCommit, Point::OrderCarriedOut]
        .into_iter()
        .find(|point| told(*point) == name)?;
    Some((point, number.parse().ok()?))
}

fn told(point: Point) -> &'static str {
    match point {
        Point::BeforeCommit => "before_commit",
        Point::AfterCommit => "after_commit",
        Point::OrderCarriedOut => "order_carried_out",
    }
}

fn reached(point: Point) {
    let Some(watch) = WATCH.get() else { return };
    let mut reached = watch.reached.lock().unwrap_or_else(PoisonError::into_inner);
    let count = &mut reached[point as usize];
    *count += 1;
    let _a_test_would_miss_it = writeln!(&watch.log, "{}:{count}", told(point));
    if watch.place == Some((point, *count)) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // Nobody goes on from here while the signal is on its way, and the lock keeps others from here too.
        loop {
            std::thread::park();
        }
    }
}
