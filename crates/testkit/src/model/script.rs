//! Determines the model's answers: ordered rules, then a queue, then a default.
//!
//! Agent programs also ask the model for titles, summaries and verdicts. Those side requests, recognised in `errand`,
//! get a harmless answer. They use no rule and no queue entry, unless a rule was made for side requests.

use std::collections::VecDeque;
use std::fmt;

use super::{
    answer::ScriptedAnswer, errand, form, heard::ReceivedRequest, order, record::AnswerSource, stub,
};

/// A script of answers. Its functions depend only on the request, so that equal requests get equal answers. They are
/// called while the server's record is locked and must not call the server.
pub struct ModelScript {
    rules: Vec<ScriptRule>,
    queue: VecDeque<ScriptedAnswer>,
    otherwise: AnswerFunction,
    turn: RequestMatcher,
    key: Option<String>,
    order: OrderCheck,
}

type RequestMatcher = Box<dyn Fn(&ReceivedRequest) -> bool + Send>;
type AnswerFunction = Box<dyn Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send>;

struct ScriptRule {
    kind: RuleKind,
    answering: AnswerFunction,
    left: RuleUses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleKind {
    Turn,
    Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleUses {
    Endless,
    Left(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderCheck {
    Ignored,
    Checked,
}

impl ModelScript {
    /// Creates a script that answers each turn with `STUB users=… last=<…> history=[…]` and follows directives such as
    /// `[[shell:ls]]` in the prompt. [`ModelScript::otherwise`] sets another default.
    pub fn new() -> Self {
        Self {
            rules: Vec::new(),
            queue: VecDeque::new(),
            otherwise: Box::new(|heard| Some(stub::answer(heard))),
            turn: Box::new(|heard| !errand::is_one(heard)),
            key: None,
            order: OrderCheck::Ignored,
        }
    }

    /// Answers each matching turn.
    #[must_use]
    pub fn when(
        self,
        matches: impl Fn(&ReceivedRequest) -> bool + Send + 'static,
        answer: ScriptedAnswer,
    ) -> Self {
        self.rule(RuleKind::Turn, RuleUses::Endless, move |heard| matches(heard).then(|| answer.clone()))
    }

    /// Answers the first matching turn; later ones are left to the rest of the script.
    #[must_use]
    pub fn once(
        self,
        matches: impl Fn(&ReceivedRequest) -> bool + Send + 'static,
        answer: ScriptedAnswer,
    ) -> Self {
        self.rule(RuleKind::Turn, RuleUses::Left(1), move |heard| matches(heard).then(|| answer.clone()))
    }

    /// Calls the function for each turn that no earlier rule answered.
    #[must_use]
    pub fn decide(
        self,
        answering: impl Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send + 'static,
    ) -> Self {
        self.rule(RuleKind::Turn, RuleUses::Endless, answering)
    }

    /// Calls the function for each side request that no earlier rule answered.
    #[must_use]
    pub fn aside(
        self,
        answering: impl Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send + 'static,
    ) -> Self {
        self.rule(RuleKind::Side, RuleUses::Endless, answering)
    }

    /// Adds an answer to the queue for turns that no rule answers.
    #[must_use]
    pub fn then(mut self, answer: ScriptedAnswer) -> Self {
        self.queue.push_back(answer);
        self
    }

    /// Sets the answer for turns that neither a rule nor the queue answers.
    #[must_use]
    pub fn otherwise(mut self, answer: ScriptedAnswer) -> Self {
        self.otherwise = Box::new(move |_| Some(answer.clone()));
        self
    }

    /// Defines which requests are turns; the others are side requests.
    #[must_use]
    pub fn turns_are(mut self, matches: impl Fn(&ReceivedRequest) -> bool + Send + 'static) -> Self {
        self.turn = Box::new(matches);
        self
    }

    /// Refuses requests with another API key.
    #[must_use]
    pub fn demand_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Refuses requests whose messages are in an order or a form that real services refuse, and reports the reason.
    #[must_use]
    pub fn demand_order(mut self) -> Self {
        self.order = OrderCheck::Checked;
        self
    }

    pub(super) fn answer(&mut self, heard: &ReceivedRequest) -> (ScriptedAnswer, AnswerSource) {
        if self.key.is_some() && self.key != heard.key {
            return (
                ScriptedAnswer::status(401, "the key is not the one that is demanded"),
                AnswerSource::Unauthorised,
            );
        }
        if self.order == OrderCheck::Checked {
            let mut faults = order::faults(heard);
            faults.extend(form::faults(heard));
            if !faults.is_empty() {
                return (ScriptedAnswer::status(400, faults.join("; ")), AnswerSource::Faulty(faults));
            }
        }
        let kind = if (self.turn)(heard) { RuleKind::Turn } else { RuleKind::Side };
        for rule in self.rules.iter_mut().filter(|rule| rule.kind == kind && rule.left != RuleUses::Left(0)) {
            if let Some(answer) = (rule.answering)(heard) {
                if let RuleUses::Left(left) = &mut rule.left {
                    *left -= 1;
                }
                let treatment =
                    if kind == RuleKind::Turn { AnswerSource::Scripted } else { AnswerSource::ScriptedSide };
                return (answer, treatment);
            }
        }
        if kind == RuleKind::Side {
            return (ScriptedAnswer::harmless(heard.schema.as_ref()), AnswerSource::Side);
        }
        if let Some(answer) = self.queue.pop_front() {
            return (answer, AnswerSource::Scripted);
        }
        let answer = (self.otherwise)(heard).unwrap_or_else(|| ScriptedAnswer::harmless(None));
        (answer, AnswerSource::Default)
    }

    fn rule(
        mut self,
        kind: RuleKind,
        left: RuleUses,
        answering: impl Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send + 'static,
    ) -> Self {
        self.rules.push(ScriptRule { kind, answering: Box::new(answering), left });
        self
    }
}

impl Default for ModelScript {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ModelScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rules, queue, otherwise: _, turn: _, key, order } = self;
        let mut told = f.debug_struct("ModelScript");
        told.field("rules", &rules.len()).field("queue", queue).field("key", key).field("order", order);
        told.finish_non_exhaustive()
    }
}
