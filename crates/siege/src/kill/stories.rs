//! The scenarios of the crash test: runs on both parrots that append lines, ask questions, wait for approvals and chat.

use abide_testkit::daemon::{TestHome, TestScenario};

/// Scenarios that are played at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScenarioGroup {
    /// A question and an approval on each parrot.
    Asking,
    /// A chat of several messages on each parrot.
    Chatting,
    /// Runs without questions; more runs than slots.
    Queueing,
}

pub(crate) fn acts() -> Vec<ScenarioGroup> {
    vec![ScenarioGroup::Asking, ScenarioGroup::Chatting, ScenarioGroup::Queueing]
}

/// The maximum number of concurrent turns.
pub(crate) const SLOTS: &str = "4";

const PARROTS: [&str; 2] = ["parrot", "parrot-sticky"];

impl ScenarioGroup {
    pub(crate) fn stories(self, home: &TestHome) -> Vec<TestScenario> {
        let story = |name: &str, engine: &str| TestScenario::new(name, engine, home.workspace(name));
        match self {
            Self::Asking => PARROTS
                .map(|engine| {
                    story(&format!("asking-{engine}"), engine)
                        .appends()
                        .asks("q1")
                        .waits_at_gate("g1")
                        .appends()
                })
                .into(),
            Self::Chatting => PARROTS.map(|engine| chat(story(&format!("chatting-{engine}"), engine))).into(),
            Self::Queueing => (0..8)
                .map(|number| {
                    let engine = PARROTS[number % PARROTS.len()];
                    story(&format!("queueing-{number}"), engine).in_mode("auto").appends().appends()
                })
                .collect(),
        }
    }
}

/// Returns a scenario whose kind is chosen by its number.
pub(crate) fn any(home: &TestHome, number: usize) -> TestScenario {
    let name = format!("story-{number}");
    let engine = PARROTS[number / 4 % PARROTS.len()];
    let story = TestScenario::new(&name, engine, home.workspace(&name));
    match number % 4 {
        0 => story.appends().asks("q1").appends().asks("q2").obeys("say done"),
        1 => story.appends().waits_at_gate("g1").obeys("progress on").appends(),
        2 => chat(story),
        _ => story.in_mode("auto").appends().obeys("sleep 0.1").appends().obeys("print 2000").appends(),
    }
}

fn chat(story: TestScenario) -> TestScenario {
    story.appends().then_hears().appends().then_hears().appends()
}
