//! The externally visible record of a finished run, and the check of that record against its scenario. The record must
//! match exactly, or, if processes of the run were killed, be one of the results that the rules allow in that case.

use serde_json::Value;

use super::{processes::CrashVictim, scenario::TestScenario};

/// The externally visible record of one run.
#[derive(Clone, Debug, Default)]
pub struct ScenarioRecord {
    pub run_id: String,
    /// The replies sent, as pairs of interaction id and text.
    pub answers: Vec<(String, String)>,
    /// The number of recovery questions that Abide itself asked.
    pub recovery_questions: u64,
    /// The number of replies, messages and stops that were refused because the question or the run had ended.
    pub refused_requests: u64,
    /// The number of repeated requests.
    pub retries: u64,
    /// The number of acknowledged requests.
    pub acknowledged: u64,
    /// The run's final state.
    pub run: Value,
    pub questions: Vec<Value>,
    pub turns: Vec<Value>,
    /// Violations found; empty if the record is correct.
    pub problems: Vec<String>,
}

impl ScenarioRecord {
    /// Compares the daemon's records and the workspace's file with the scenario. `killed` lists the run's processes
    /// that were killed.
    pub fn check(&mut self, scenario: &TestScenario, killed: &[CrashVictim]) {
        if !self.problems.is_empty() {
            return;
        }
        let mut wrong = self.check_answers();
        wrong.extend(match killed {
            [] => self.check_exact(scenario),
            killed => self.check_allowed(scenario, killed),
        });
        let name = &scenario.name;
        self.problems.extend(wrong.into_iter().map(|problem| format!("{name} ({}): {problem}", self.run_id)));
    }

    /// The ledger contains each acknowledged answer and no other.
    fn check_answers(&self) -> Vec<String> {
        let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let answered = self.questions.iter().filter(|item| item["reply"].is_string());
        let recorded: Vec<(String, String)> =
            answered.map(|item| (text(item, "interaction_id"), text(item, "reply"))).collect();
        if recorded == self.answers {
            return vec![];
        }
        vec![format!("answered {:?}, but the ledger has {recorded:?}", self.answers)]
    }

    /// No process was killed: each step happened exactly once and in order.
    fn check_exact(&self, scenario: &TestScenario) -> Vec<String> {
        let mut wrong = vec![];
        if self.status() != scenario.final_status {
            wrong.push(format!("ended as {}, wanted {}", self.run, scenario.final_status));
        }
        if self.questions.len() as u64 != scenario.expected_questions as u64 + self.recovery_questions {
            wrong.push(format!("{} questions, not {}", self.questions.len(), scenario.expected_questions));
        }
        if self.refused_requests > 0 {
            wrong.push(format!("{} requests came too late", self.refused_requests));
        }
        let written = scenario.written_lines();
        if written != scenario.expected_lines {
            wrong.push(format!("wrote {written:?}, not {:?}", scenario.expected_lines));
        }
        wrong
    }

    /// Processes were killed: no step happened twice, each missing step was reported, and the final status is one that
    /// the rules allow (A10, A12, E7, E8).
    fn check_allowed(&self, scenario: &TestScenario, killed: &[CrashVictim]) -> Vec<String> {
        let mut wrong = vec![];
        let written = scenario.written_lines();
        if !is_subsequence(&written, &scenario.expected_lines) {
            wrong.push(format!("wrote {written:?}, which is no part of {:?}", scenario.expected_lines));
        }
        let code = self.run["error"]["code"].as_str().unwrap_or_default();
        let (keeper, child) = (killed.contains(&CrashVictim::Keeper), killed.contains(&CrashVictim::Child));
        let sticky = scenario.engine.contains("sticky");
        let allowed = match (self.status(), code) {
            ("succeeded", _) => scenario.mode != "chat",
            ("canceled", _) => scenario.mode == "chat",
            ("failed", "ENGINE_FAILED") => child,
            ("failed", "RECOVERY_FAILED") => keeper && (sticky || scenario.mode == "auto"),
            ("failed", "INTERACTION_PROCESS_LOST") => sticky,
            ("failed", "SESSION_RESUME_FAILED") => !sticky && scenario.mode != "auto",
            (_, _) => false,
        };
        if !allowed {
            wrong.push(format!("ended as {} after {killed:?} were killed", self.run));
        }
        let status = |turn: &Value| turn["execution_status"].as_str().unwrap_or_default().to_owned();
        let statuses: Vec<String> = self.turns.iter().map(status).collect();
        let is_reported = self.status() == "failed" || statuses.iter().any(|status| status != "completed");
        if written.len() < scenario.expected_lines.len() && !is_reported {
            wrong.push(format!("wrote only {written:?}, and every turn is completed: {statuses:?}"));
        }
        let lost = statuses.iter().filter(|status| *status == "recovery_required").count() as u64;
        if scenario.mode == "interactive" && !sticky && lost > self.recovery_questions {
            wrong.push(format!("{lost} turns were lost, and {} questions asked", self.recovery_questions));
        }
        if let Some(open) = self.questions.iter().find(|item| item["state"] == "open") {
            wrong.push(format!("a question is open: {open}"));
        }
        wrong
    }

    fn status(&self) -> &str {
        self.run["status"].as_str().unwrap_or_default()
    }
}

/// Whether `written` is a subsequence of `lines`, with each line used at most once. The answer in a line may differ: a
/// session that was killed before it read an answer takes the next prompt as the answer.
fn is_subsequence(written: &[String], lines: &[String]) -> bool {
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let mut rest = lines.iter();
    written.iter().all(|line| rest.any(|other| name(other) == name(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn a_part_has_no_repetition_no_other_order_and_nothing_else() {
        let all = lines("a-1,a-2 answer,a-3");
        for part in ["a-1", "a-1,a-3", "a-2 another,a-3", "a-1,a-2 answer,a-3"] {
            assert!(is_subsequence(&lines(part), &all), "{part}");
        }
        for other in ["a-1,a-1", "a-3,a-1", "a-1,b-2"] {
            assert!(!is_subsequence(&lines(other), &all), "{other}");
        }
    }

    #[test]
    fn a_line_that_is_missing_without_a_word_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = TestScenario::new("a", "parrot", folder.path().to_owned()).append_line().append_line();
        std::fs::write(folder.path().join("log"), "a-1\n").unwrap();
        let ended = |turns: Value| {
            let turns = turns.as_array().cloned().unwrap();
            let mut account =
                ScenarioRecord { run: json!({ "status": "succeeded" }), turns, ..ScenarioRecord::default() };
            account.check(&scenario, &[CrashVictim::Keeper]);
            account.problems
        };
        assert_eq!(ended(json!([{ "execution_status": "completed" }])).len(), 1);
        // A lost turn must have been reported to the user.
        assert_eq!(ended(json!([{ "execution_status": "recovery_required" }])).len(), 1);
        assert_eq!(ended(json!([{ "execution_status": "failed" }])), [""; 0]);
    }

    #[test]
    fn codes_belong_to_their_deaths() {
        let folder = tempfile::tempdir().unwrap();
        let ended = |engine: &str, code: &str, killed: CrashVictim| {
            let scenario = TestScenario::new("a", engine, folder.path().to_owned());
            let run = json!({ "status": "failed", "error": { "code": code } });
            let mut account = ScenarioRecord { run, ..ScenarioRecord::default() };
            account.check(&scenario, &[killed]);
            account.problems.is_empty()
        };
        assert!(ended("parrot", "ENGINE_FAILED", CrashVictim::Child));
        assert!(!ended("parrot", "ENGINE_FAILED", CrashVictim::Keeper));
        assert!(!ended("parrot", "RECOVERY_FAILED", CrashVictim::Keeper), "an interactive run asks");
        assert!(ended("parrot-sticky", "RECOVERY_FAILED", CrashVictim::Keeper));
        assert!(ended("parrot-sticky", "INTERACTION_PROCESS_LOST", CrashVictim::Keeper));
        assert!(!ended("parrot", "INTERACTION_PROCESS_LOST", CrashVictim::Keeper));
        assert!(!ended("parrot-sticky", "SESSION_RESUME_FAILED", CrashVictim::Keeper));
    }
}
