//! The agent's own time in an iteration, with a short and with a long journal.

use std::{path::Path, time::Duration};

use abide_agent::definition::AgentDefinition;

use crate::{
    FEW, MANY,
    figures::{TimeSeries, judge},
    model::{ModelBehaviour, SocketModel},
    scene::{self, AgentBenchFixture},
};

/// The number of rounds, and the iterations of each side in a round. Together they are enough to shorten the long
/// window several times.
const ROUNDS: usize = 12;
const ITERATIONS: usize = 20;
/// The maximum ratio of the long journal's time to that of the short one.
const MOST: f64 = 3.0;

pub(crate) fn bench(scene: &AgentBenchFixture) -> bool {
    let disk = measure(scene, &scene.folder);
    let memory = scene::in_memory();
    let unsynced = measure(scene, memory.path());
    let IterationTimes { few, many, window } = &disk;
    println!(
        "\niteration, {ROUNDS} rounds of {ITERATIONS}; requests of {} KiB with {FEW} events and {} KiB with {MANY}",
        window.0 >> 10,
        window.1 >> 10
    );
    let mut passed = true;
    for (name, of) in WAYS {
        let (short, long) = (of(few), of(many));
        println!("{name:<8} {short:>8.0} us   {long:>8.0} us   x {:.2}", long / short);
        passed &= judge(long / short <= MOST, &format!("at most {MOST} times that with {FEW} events"));
    }
    let share = |whole: &TimeSeries, part: &TimeSeries| (1.0 - part.median / whole.median) * 100.0;
    println!(
        "    limited by two syncs of the journal: {:.0} % with {FEW} events and {:.0} % with {MANY}; in memory it is \
         {:.0} and {:.0} us, x {:.2}, most of it one copy of the window to the model",
        share(few, &unsynced.few),
        share(many, &unsynced.many),
        unsynced.few.median,
        unsynced.many.median,
        unsynced.many.median / unsynced.few.median,
    );
    passed
}

type SeriesFigure = fn(&TimeSeries) -> f64;
const WAYS: [(&str, SeriesFigure); 2] = [("median", |series| series.median), ("mean", |series| series.mean)];

struct IterationTimes {
    few: TimeSeries,
    many: TimeSeries,
    /// The length of the last request, in bytes.
    window: (usize, usize),
}

fn measure(scene: &AgentBenchFixture, folder: &Path) -> IterationTimes {
    let model = SocketModel::start(ModelBehaviour::Calls);
    let definition = scene.definition(&model.base_url);
    let (few_state, many_state) = (folder.join("few"), folder.join("many"));
    scene.many.put(&many_state);
    let (mut few, mut many, mut window) = (vec![], vec![], (0, 0));
    for _ in 0..ROUNDS {
        // The short journal is restored in each round; the long one hardly grows.
        scene.few.put(&few_state);
        window.0 = round(&definition, &few_state, &model, &mut few);
        window.1 = round(&definition, &many_state, &model, &mut many);
    }
    IterationTimes { few: TimeSeries::of(&few), many: TimeSeries::of(&many), window }
}

/// Runs a round in one state folder. Returns the length of its last request.
fn round(
    definition: &AgentDefinition,
    state: &Path,
    model: &SocketModel,
    times: &mut Vec<Duration>,
) -> usize {
    let took = scene::go_on(definition, state, ITERATIONS + 1);
    let asked: Vec<_> = (0..=ITERATIONS).map(|_| model.asked.recv().expect("as many requests")).collect();
    for (pair, tool) in asked.windows(2).zip(took) {
        times.push((pair[1].read - pair[0].answered).saturating_sub(tool));
    }
    asked.last().map_or(0, |last| last.bytes)
}
