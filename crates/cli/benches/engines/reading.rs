//! The speed at which each adapter interprets its program's output, relative to a plain JSON parser on the same lines.
//!
//! The time is the CPU time of the thread, so a busy machine has little influence. The resulting facts are dropped at
//! once, as most are in the daemon.

use abide_engines::registry;
use abide_ports::engine::{Engine, EngineInstallation};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    corpus::{LineLength, RecordedPassage},
    figures::median,
};

/// The required speed on one core, in millions of bytes per second, on lines of the length of real turns.
const MIN_MB_PER_SECOND: f64 = 300.0;
/// The number of bytes in each round, over all passages of an engine.
const BYTES_PER_ROUND: usize = 32 << 20;
const ROUNDS: usize = 5;
/// The number of bytes that an interpreter gets at a time.
const FEED_BYTES: usize = 64 << 10;

/// Returns whether each adapter is fast enough.
pub(crate) fn bench(chosen: impl Fn(&str) -> bool) -> bool {
    println!(
        "reading, in MB/s on one core; x json is the ratio to serde_json parsing the same lines into values"
    );
    println!(
        "{:<14} {:>8} {:>8}  {:<5} {:>22} {:>8}",
        "", "x json", "MB/s", "", "lines as recorded: x", "MB/s"
    );
    let acp = registry::acp("acp", EngineInstallation::for_program("some-agent"));
    let mut passed = true;
    for engine in registry::built_in().into_iter().chain([acp]).filter(|engine| chosen(engine.name())) {
        let all = RecordedPassage::all(&*engine);
        let (held, alone): (Vec<_>, Vec<_>) = all.into_iter().partition(RecordedPassage::is_held);
        for (passages, form) in [(alone, ""), (held, " held")] {
            if passages.is_empty() {
                continue;
            }
            let stretched = measure(&*engine, &passages, LineLength::Stretched);
            let recorded = measure(&*engine, &passages, LineLength::Recorded);
            let enough = stretched.rate >= MIN_MB_PER_SECOND;
            passed &= enough;
            println!(
                "{:<14} {:>8.2} {:>8.0}  {:<5} {:>22.2} {:>8.0}",
                format!("{}{form}", engine.name()),
                stretched.ratio,
                stretched.rate,
                if enough { "PASS" } else { "MISS" },
                recorded.ratio,
                recorded.rate,
            );
        }
    }
    println!(
        "lines of 200 B to 20 kB in pieces of 64 KiB; at least {MIN_MB_PER_SECOND:.0} MB/s is wanted of them"
    );
    passed
}

struct ReadingSpeed {
    rate: f64,
    ratio: f64,
}

fn measure(engine: &dyn Engine, passages: &[RecordedPassage], size: LineLength) -> ReadingSpeed {
    let least = BYTES_PER_ROUND / passages.len();
    let texts: Vec<Vec<u8>> = passages.iter().map(|passage| passage.repeated(size, least)).collect();
    let bytes: usize = texts.iter().map(Vec::len).sum();
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut spent = 0.0;
        for (passage, text) in passages.iter().zip(&texts) {
            let mut interpreter = passage.interpreter_after_opening(engine);
            spent += cpu_seconds(|| text.chunks(FEED_BYTES).for_each(|piece| drop(interpreter.feed(piece))));
        }
        ours.push(bytes as f64 / 1e6 / spent);
        let parsed = cpu_seconds(|| texts.iter().for_each(|text| parse(text)));
        plain.push(bytes as f64 / 1e6 / parsed);
    }
    let (rate, plain) = (median(ours), median(plain));
    ReadingSpeed { rate, ratio: rate / plain }
}

fn parse(text: &[u8]) {
    for line in text.split(|byte| *byte == b'\n') {
        // Plain text is not JSON; only the time counts.
        std::hint::black_box(serde_json::from_slice::<serde_json::Value>(line)).ok();
    }
}

/// Returns the CPU time that this thread spends on `work`, in seconds.
fn cpu_seconds(work: impl FnOnce()) -> f64 {
    let spent = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let before = spent();
    work();
    spent() - before
}
