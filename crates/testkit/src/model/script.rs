//! Determines the model's answers: ordered rules, then a queue, then a default.
//!
//! Agent programs also ask the model for titles, summaries and verdicts. Those side requests, recognised in
//! `side_request`, get a harmless answer. They use no rule and no queue entry, unless a rule was made for side requests.

use std::collections::VecDeque;
use std::fmt;

use super::{
    answer::ScriptedAnswer, default_answer, message_order, received::ReceivedRequest, record::AnswerSource,
    request_rules, side_request,
};

/// A script of answers. Its functions depend only on the request, so that equal requests get equal answers. They are
/// called while the server's record is locked and must not call the server.
pub struct ModelScript {
    rules: Vec<ScriptRule>,
    queue: VecDeque<ScriptedAnswer>,
    default_answer: AnswerFunction,
    is_turn: RequestMatcher,
    key: Option<String>,
    order: OrderCheck,
}

type RequestMatcher = Box<dyn Fn(&ReceivedRequest) -> bool + Send>;
type AnswerFunction = Box<dyn Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send>;

struct ScriptRule {
    kind: RuleKind,
    answer: AnswerFunction,
    uses_left: RuleUses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleKind {
    Turn,
    Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleUses {
    Unlimited,
    Left(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderCheck {
    Off,
    On,
}

impl ModelScript {
    /// Creates a script that answers each turn with `STUB users=… last=<…> history=[…]` and follows directives such as
    /// `[[shell:ls]]` in the prompt. [`ModelScript::with_default`] sets another default.
    pub fn new() -> Self {
        Self {
            rules: Vec::new(),
            queue: VecDeque::new(),
            default_answer: Box::new(|request| Some(default_answer::answer(request))),
            is_turn: Box::new(|request| !side_request::is_side_request(request)),
            key: None,
            order: OrderCheck::Off,
        }
    }

    /// Answers each matching turn.
    #[must_use]
    pub fn when(
        self,
        matches: impl Fn(&ReceivedRequest) -> bool + Send + 'static,
        answer: ScriptedAnswer,
    ) -> Self {
        self.rule(RuleKind::Turn, RuleUses::Unlimited, move |request| {
            matches(request).then(|| answer.clone())
        })
    }

    /// Answers the first matching turn; later ones are left to the rest of the script.
    #[must_use]
    pub fn when_once(
        self,
        matches: impl Fn(&ReceivedRequest) -> bool + Send + 'static,
        answer: ScriptedAnswer,
    ) -> Self {
        self.rule(RuleKind::Turn, RuleUses::Left(1), move |request| matches(request).then(|| answer.clone()))
    }

    /// Calls the function for each turn that no earlier rule answered.
    #[must_use]
    pub fn decide(
        self,
        answering: impl Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send + 'static,
    ) -> Self {
        self.rule(RuleKind::Turn, RuleUses::Unlimited, answering)
    }

    /// Calls the function for each side request that no earlier rule answered.
    #[must_use]
    pub fn decide_side(
        self,
        answering: impl Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send + 'static,
    ) -> Self {
        self.rule(RuleKind::Side, RuleUses::Unlimited, answering)
    }

    /// Adds an answer to the queue for turns that no rule answers.
    #[must_use]
    pub fn then(mut self, answer: ScriptedAnswer) -> Self {
        self.queue.push_back(answer);
        self
    }

    /// Sets the answer for turns that neither a rule nor the queue answers.
    #[must_use]
    pub fn with_default(mut self, answer: ScriptedAnswer) -> Self {
        self.default_answer = Box::new(move |_| Some(answer.clone()));
        self
    }

    /// Defines which requests are turns; the others are side requests.
    #[must_use]
    pub fn with_turn_filter(mut self, matches: impl Fn(&ReceivedRequest) -> bool + Send + 'static) -> Self {
        self.is_turn = Box::new(matches);
        self
    }

    /// Refuses requests with another API key.
    #[must_use]
    pub fn require_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Refuses requests whose messages are in an order or a form that real services refuse, and reports the reason.
    #[must_use]
    pub fn require_message_order(mut self) -> Self {
        self.order = OrderCheck::On;
        self
    }

    pub(super) fn answer(&mut self, request: &ReceivedRequest) -> (ScriptedAnswer, AnswerSource) {
        if self.key.is_some() && self.key != request.key {
            return (ScriptedAnswer::status(401, "the API key is wrong"), AnswerSource::Unauthorised);
        }
        if self.order == OrderCheck::On {
            let mut faults = message_order::faults(request);
            faults.extend(request_rules::faults(request));
            if !faults.is_empty() {
                return (ScriptedAnswer::status(400, faults.join("; ")), AnswerSource::Faulty(faults));
            }
        }
        let kind = if (self.is_turn)(request) { RuleKind::Turn } else { RuleKind::Side };
        for rule in
            self.rules.iter_mut().filter(|rule| rule.kind == kind && rule.uses_left != RuleUses::Left(0))
        {
            if let Some(answer) = (rule.answer)(request) {
                if let RuleUses::Left(count) = &mut rule.uses_left {
                    *count -= 1;
                }
                let treatment = if kind == RuleKind::Turn {
                    AnswerSource::Scripted
                } else {
                    AnswerSource::ScriptedSideRequest
                };
                return (answer, treatment);
            }
        }
        if kind == RuleKind::Side {
            return (ScriptedAnswer::minimal(request.schema.as_ref()), AnswerSource::DefaultSideRequest);
        }
        if let Some(answer) = self.queue.pop_front() {
            return (answer, AnswerSource::Scripted);
        }
        let answer = (self.default_answer)(request).unwrap_or_else(|| ScriptedAnswer::minimal(None));
        (answer, AnswerSource::Default)
    }

    fn rule(
        mut self,
        kind: RuleKind,
        uses_left: RuleUses,
        answering: impl Fn(&ReceivedRequest) -> Option<ScriptedAnswer> + Send + 'static,
    ) -> Self {
        self.rules.push(ScriptRule { kind, answer: Box::new(answering), uses_left });
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
        let Self { rules, queue, default_answer: _, is_turn: _, key, order } = self;
        let mut fields = f.debug_struct("ModelScript");
        fields.field("rules", &rules.len()).field("queue", queue).field("key", key).field("order", order);
        fields.finish_non_exhaustive()
    }
}
