//! The agent's own time in an iteration, with a short and with a long journal.

use std::{path::Path, time::Duration};

use abide_agent::definition::AgentDefinition;

use crate::{
    LONG_JOURNAL_EVENTS, SHORT_JOURNAL_EVENTS,
    figures::{TimeSeries, report_limit},
    fixture::{self, AgentBenchFixture},
    model::{ModelBehaviour, SocketModel},
};

/// The number of rounds, and the iterations of each side in a round. Together they are enough to shorten the long
/// window several times.
const ROUNDS: usize = 12;
const ITERATIONS: usize = 20;
/// The maximum ratio of the long journal's time to that of the short one.
const MAX_RATIO: f64 = 3.0;

pub(crate) fn bench(fixture: &AgentBenchFixture) -> bool {
    let disk = measure(fixture, &fixture.folder);
    let memory = fixture::tmpfs_dir();
    let unsynced = measure(fixture, memory.path());
    let IterationTimes { short: few, long: many, window } = &disk;
    println!(
        "\niteration, {ROUNDS} rounds of {ITERATIONS}; requests of {} KiB with {SHORT_JOURNAL_EVENTS} events and {} KiB with {LONG_JOURNAL_EVENTS}",
        window.0 >> 10,
        window.1 >> 10
    );
    let mut passed = true;
    for (name, of) in STATISTICS {
        let (short, long) = (of(few), of(many));
        println!("{name:<8} {short:>8.0} us   {long:>8.0} us   x {:.2}", long / short);
        passed &= report_limit(
            long / short <= MAX_RATIO,
            &format!("at most {MAX_RATIO} times that with {SHORT_JOURNAL_EVENTS} events"),
        );
    }
    let share = |whole: &TimeSeries, part: &TimeSeries| (1.0 - part.median / whole.median) * 100.0;
    println!(
        "    limited by two syncs of the journal: {:.0} % with {SHORT_JOURNAL_EVENTS} events and {:.0} % with {LONG_JOURNAL_EVENTS}; in memory it is \
         {:.0} and {:.0} us, x {:.2}, most of it one copy of the window to the model",
        share(few, &unsynced.short),
        share(many, &unsynced.long),
        unsynced.short.median,
        unsynced.long.median,
        unsynced.long.median / unsynced.short.median,
    );
    passed
}

type SeriesFigure = fn(&TimeSeries) -> f64;
const STATISTICS: [(&str, SeriesFigure); 2] =
    [("median", |series| series.median), ("mean", |series| series.mean)];

struct IterationTimes {
    short: TimeSeries,
    long: TimeSeries,
    /// The length of the last request, in bytes.
    window: (usize, usize),
}

fn measure(fixture: &AgentBenchFixture, folder: &Path) -> IterationTimes {
    let model = SocketModel::start(ModelBehaviour::Calls);
    let definition = fixture.definition(&model.base_url);
    let (few_state, many_state) = (folder.join("few"), folder.join("many"));
    fixture.long.write_to(&many_state);
    let (mut few, mut many, mut window) = (vec![], vec![], (0, 0));
    for _ in 0..ROUNDS {
        // The short journal is restored in each round; the long one hardly grows.
        fixture.short.write_to(&few_state);
        window.0 = round(&definition, &few_state, &model, &mut few);
        window.1 = round(&definition, &many_state, &model, &mut many);
    }
    IterationTimes { short: TimeSeries::of(&few), long: TimeSeries::of(&many), window }
}

/// Runs a round in one state folder. Returns the length of its last request.
fn round(
    definition: &AgentDefinition,
    state: &Path,
    model: &SocketModel,
    times: &mut Vec<Duration>,
) -> usize {
    let took = fixture::continue_agent(definition, state, ITERATIONS + 1);
    let requests: Vec<_> =
        (0..=ITERATIONS).map(|_| model.requests.recv().expect("as many requests")).collect();
    for (pair, tool) in requests.windows(2).zip(took) {
        times.push((pair[1].read - pair[0].answered).saturating_sub(tool));
    }
    requests.last().map_or(0, |last| last.bytes)
}
