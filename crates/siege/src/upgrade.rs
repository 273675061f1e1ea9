//! Another binary takes over a home with open questions, held processes and running turns: everything goes on.
//!
//! What is begun by the old daemon is lived to its end with the new one: asking again for the same run, under the same
//! key, gives the same run.

use std::{path::Path, time::Duration};

use abide_testkit::daemon::{Client, Feed, Home, Patience, Running, Story, Voice};

use crate::{
    kill::{audit, scene::nap},
    tally::Tally,
};

const PARROTS: [&str; 2] = ["parrot", "parrot-sticky"];
const PATIENCE: Patience = Patience { tries: 3_000, pause: Duration::from_millis(20) };

/// Replaces `old` by `new`, once in order and once by force.
pub(crate) fn run(old: &Path, new: &Path) -> Tally {
    let mut tally = Tally::default();
    for by_force in [false, true] {
        tally.add(replace(old, new, by_force));
    }
    tally
}

fn replace(old: &Path, new: &Path, by_force: bool) -> Tally {
    let mut tally = Tally { starts: 2, readers: 1, ..Tally::default() };
    let mut home = Home::new(old).with("ABIDE_SLOTS_MAX_RUNNING", "12");
    let stories = stories(&home);
    let daemon = home.start();
    for story in &stories {
        if let Err(problem) = begin(&home, story) {
            tally.problems.push(problem);
        }
    }
    if by_force {
        daemon.kill();
        *tally.kills.entry("an upgrade by force".to_owned()).or_default() += 1;
    } else {
        daemon.terminate();
    }
    home.replace_program(new);
    let daemon: Running = home.start();
    let feed = Feed::open("/v1/events", home.finder());
    std::thread::scope(|scope| {
        let lives: Vec<_> = stories
            .iter()
            .map(|story| scope.spawn(|| Voice::new(|| home.client(), PATIENCE).live(story)))
            .collect();
        for (story, life) in stories.iter().zip(lives) {
            match life.join() {
                Ok(account) => tally.lived(story, &account),
                Err(_) => tally.problems.push(format!("{}: nobody tells", story.name)),
            }
        }
    });
    let wrong = audit::look(&home, &feed, daemon, &mut tally);
    tally.problems.extend(wrong);
    tally
}

/// A question, a gate, a turn at work and a chat on each parrot.
fn stories(home: &Home) -> Vec<Story> {
    PARROTS
        .iter()
        .flat_map(|engine| {
            let story = |kind: &str| {
                let name = format!("{kind}-{engine}");
                Story::new(&name, engine, home.workspace(&name))
            };
            [
                story("asks").appends().asks("q1").appends(),
                story("waits").appends().waits_at_gate("g1").appends(),
                story("works").appends().obeys("sleep 3").obeys("progress on").appends(),
                story("chats").appends().then_hears().appends(),
            ]
        })
        .collect()
}

/// Creates a run and waits until it is where the upgrade should find it.
fn begin(home: &Home, story: &Story) -> Result<(), String> {
    let client: Client = home.client().map_err(|error| error.to_string())?;
    let created = client
        .post_once("/v1/runs", &story.name, &story.request())
        .map_err(|error| format!("{}: {error}", story.name))?;
    let path = format!("/v1/runs/{}", created.text("/run_id"));
    let wanted = match (story.questions, story.mode.as_str()) {
        (0, "chat") => "idle",
        (0, _) => "running",
        _ => "waiting_user",
    };
    for _ in 0..1_000 {
        let run = client.get(&path).map_err(|error| error.to_string())?;
        if run.body["status"] == wanted {
            return Ok(());
        }
        nap(Duration::from_millis(20));
    }
    Err(format!("{}: never comes to {wanted}", story.name))
}
