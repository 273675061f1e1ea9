//! The scenarios of the crash test: runs on both parrots that append lines, ask questions, wait for approvals and chat.

use abide_testkit::daemon::{TestHome, TestScenario};

/// Scenarios that are played at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScenarioGroup {
    /// A question and an approval on each parrot.
    Questions,
    /// A chat of several messages on each parrot.
    Chats,
    /// Runs without questions; more runs than slots.
    Queue,
}

pub(crate) fn groups() -> Vec<ScenarioGroup> {
    vec![ScenarioGroup::Questions, ScenarioGroup::Chats, ScenarioGroup::Queue]
}

/// The maximum number of concurrent turns.
pub(crate) const SLOTS: &str = "4";

const PARROTS: [&str; 2] = ["parrot", "parrot-sticky"];

impl ScenarioGroup {
    pub(crate) fn scenarios(self, home: &TestHome) -> Vec<TestScenario> {
        let scenario = |name: &str, engine: &str| TestScenario::new(name, engine, home.workspace(name));
        match self {
            Self::Questions => PARROTS
                .map(|engine| {
                    scenario(&format!("asking-{engine}"), engine)
                        .append_line()
                        .ask("q1")
                        .request_approval("g1")
                        .append_line()
                })
                .into(),
            Self::Chats => PARROTS.map(|engine| chat(scenario(&format!("chatting-{engine}"), engine))).into(),
            Self::Queue => (0..8)
                .map(|number| {
                    let engine = PARROTS[number % PARROTS.len()];
                    scenario(&format!("queueing-{number}"), engine)
                        .in_mode("auto")
                        .append_line()
                        .append_line()
                })
                .collect(),
        }
    }
}

/// Returns a scenario whose kind is chosen by its number.
pub(crate) fn scenario_by_number(home: &TestHome, number: usize) -> TestScenario {
    let name = format!("story-{number}");
    let engine = PARROTS[number / 4 % PARROTS.len()];
    let scenario = TestScenario::new(&name, engine, home.workspace(&name));
    match number % 4 {
        0 => scenario.append_line().ask("q1").append_line().ask("q2").instruct("say done"),
        1 => scenario.append_line().request_approval("g1").instruct("progress on").append_line(),
        2 => chat(scenario),
        _ => scenario
            .in_mode("auto")
            .append_line()
            .instruct("sleep 0.1")
            .append_line()
            .instruct("print 2000")
            .append_line(),
    }
}

fn chat(scenario: TestScenario) -> TestScenario {
    scenario.append_line().next_message().append_line().next_message().append_line()
}
