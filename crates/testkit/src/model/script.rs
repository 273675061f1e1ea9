//! Who decides what the model answers: ordered rules, then a queue, then a default.
//!
//! Agent programs also ask the model for titles, summaries and verdicts of their own. Those side requests, told apart in
//! `errand`, get a harmless answer and leave the rules and the queue alone, unless a rule was made for them.

use std::collections::VecDeque;
use std::fmt;

use super::{answer::Answer, errand, form, heard::Heard, order, record::Treatment, stub};

/// Its functions look at nothing but the request, so that the same requests always get the same answers; they are
/// called while the server's memory is locked and must not ask the server.
pub struct Script {
    rules: Vec<Rule>,
    queue: VecDeque<Answer>,
    otherwise: Answering,
    turn: Matching,
    key: Option<String>,
    order: Order,
}

type Matching = Box<dyn Fn(&Heard) -> bool + Send>;
type Answering = Box<dyn Fn(&Heard) -> Option<Answer> + Send>;

struct Rule {
    kind: Kind,
    answering: Answering,
    left: Uses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Turn,
    Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Uses {
    Endless,
    Left(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Ignored,
    Checked,
}

impl Script {
    /// A script that answers every turn with `STUB users=… last=<…> history=[…]` and obeys directives such as
    /// `[[shell:ls]]` in the prompt; see [`Script::otherwise`] for another default.
    pub fn new() -> Self {
        Self {
            rules: Vec::new(),
            queue: VecDeque::new(),
            otherwise: Box::new(|heard| Some(stub::answer(heard))),
            turn: Box::new(|heard| !errand::is_one(heard)),
            key: None,
            order: Order::Ignored,
        }
    }

    /// Turns that match are answered like this, every time.
    #[must_use]
    pub fn when(self, matches: impl Fn(&Heard) -> bool + Send + 'static, answer: Answer) -> Self {
        self.rule(Kind::Turn, Uses::Endless, move |heard| matches(heard).then(|| answer.clone()))
    }

    /// The first turn that matches is answered like this, later ones are left to the rest of the script.
    #[must_use]
    pub fn once(self, matches: impl Fn(&Heard) -> bool + Send + 'static, answer: Answer) -> Self {
        self.rule(Kind::Turn, Uses::Left(1), move |heard| matches(heard).then(|| answer.clone()))
    }

    /// The function is asked about each turn that no earlier rule answered.
    #[must_use]
    pub fn decide(self, answering: impl Fn(&Heard) -> Option<Answer> + Send + 'static) -> Self {
        self.rule(Kind::Turn, Uses::Endless, answering)
    }

    /// The function is asked about each side request that no earlier rule answered.
    #[must_use]
    pub fn aside(self, answering: impl Fn(&Heard) -> Option<Answer> + Send + 'static) -> Self {
        self.rule(Kind::Side, Uses::Endless, answering)
    }

    /// The next turn that no rule answers gets this; several are given in order.
    #[must_use]
    pub fn then(mut self, answer: Answer) -> Self {
        self.queue.push_back(answer);
        self
    }

    /// What is answered when rules and queue have nothing.
    #[must_use]
    pub fn otherwise(mut self, answer: Answer) -> Self {
        self.otherwise = Box::new(move |_| Some(answer.clone()));
        self
    }

    /// Says which requests are turns; the others are side requests.
    #[must_use]
    pub fn turns_are(mut self, matches: impl Fn(&Heard) -> bool + Send + 'static) -> Self {
        self.turn = Box::new(matches);
        self
    }

    /// Whoever comes with another key is refused.
    #[must_use]
    pub fn demand_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Requests whose messages are in an order or a form that real services refuse are refused, with the reason.
    #[must_use]
    pub fn demand_order(mut self) -> Self {
        self.order = Order::Checked;
        self
    }

    pub(super) fn answer(&mut self, heard: &Heard) -> (Answer, Treatment) {
        if self.key.is_some() && self.key != heard.key {
            return (Answer::status(401, "the key is not the one that is demanded"), Treatment::Unauthorised);
        }
        if self.order == Order::Checked {
            let mut faults = order::faults(heard);
            faults.extend(form::faults(heard));
            if !faults.is_empty() {
                return (Answer::status(400, faults.join("; ")), Treatment::Faulty(faults));
            }
        }
        let kind = if (self.turn)(heard) { Kind::Turn } else { Kind::Side };
        for rule in self.rules.iter_mut().filter(|rule| rule.kind == kind && rule.left != Uses::Left(0)) {
            if let Some(answer) = (rule.answering)(heard) {
                if let Uses::Left(left) = &mut rule.left {
                    *left -= 1;
                }
                let treatment =
                    if kind == Kind::Turn { Treatment::Scripted } else { Treatment::ScriptedSide };
                return (answer, treatment);
            }
        }
        if kind == Kind::Side {
            return (Answer::harmless(heard.schema.as_ref()), Treatment::Side);
        }
        if let Some(answer) = self.queue.pop_front() {
            return (answer, Treatment::Scripted);
        }
        let answer = (self.otherwise)(heard).unwrap_or_else(|| Answer::harmless(None));
        (answer, Treatment::Default)
    }

    fn rule(
        mut self,
        kind: Kind,
        left: Uses,
        answering: impl Fn(&Heard) -> Option<Answer> + Send + 'static,
    ) -> Self {
        self.rules.push(Rule { kind, answering: Box::new(answering), left });
        self
    }
}

impl Default for Script {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rules, queue, otherwise: _, turn: _, key, order } = self;
        let mut told = f.debug_struct("Script");
        told.field("rules", &rules.len()).field("queue", queue).field("key", key).field("order", order);
        told.finish_non_exhaustive()
    }
}
