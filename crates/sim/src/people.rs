//! Fake people: they send requests, repeat them, answer late, and retry without a response.

use abide_daemon::{RequestError, RequestOutcome};
use abide_domain::{
    event::{IdempotencyClaim, NewRun, RunEvent},
    id::{InteractionId, RunId},
    inbound::{InboundMessage, MessageKey},
    reply::{InteractionReply, ReplyAuthor},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_ports::{
    clock::Clock,
    store::{PageRequest, StoreQueries},
};

use crate::{
    daemon::now,
    engine::EnginePlan,
    world::{HistoryHalt, SimWorld},
};

/// The requests of people and the responses.
#[derive(Debug, Default)]
pub(crate) struct SimPeople {
    pub(crate) behave: bool,
    next: u32,
    runs: usize,
    /// Requests without a response; they are repeated unchanged.
    unanswered: Vec<PersonRequest>,
    /// Requests with a response; some are repeated anyway.
    answered: Vec<PersonRequest>,
    /// Acknowledged messages, and the runs that accepted them.
    pub(crate) acknowledged: Vec<(MessageKey, RunId)>,
    /// Acknowledged replies.
    pub(crate) taken_replies: Vec<(InteractionId, String)>,
    seen_questions: Vec<InteractionId>,
}

#[derive(Clone, Debug)]
enum PersonRequest {
    Create(Box<NewRun>),
    Say { run: RunId, message: InboundMessage, on_busy: OnBusy },
}

const MOST_RUNS: usize = 4;

impl SimWorld {
    pub(crate) fn create_run(&mut self) -> Result<(), HistoryHalt> {
        if let (true, Some(request)) = (self.dice.chance(30), self.dice.choose(&self.people.answered)) {
            return self.request(request);
        }
        if self.people.runs >= MOST_RUNS {
            return Ok(());
        }
        self.people.runs += 1;
        self.people.next += 1;
        let key = format!("create-{}", self.people.next);
        let message = message(&key);
        let settings = self.random_settings();
        let run_id = RunId(self.clock.stamp().id_seed);
        let idempotency = Some(IdempotencyClaim { key, fingerprint: "same".into() });
        let plan = EnginePlan::random(&mut self.dice);
        self.plans.insert(run_id, plan);
        let new = NewRun {
            run_id,
            settings,
            message,
            idempotency,
            rules: abide_domain::run::CURRENT_RULES_VERSION,
        };
        self.request(PersonRequest::Create(Box::new(new)))
    }

    pub(crate) fn send_message(&mut self) -> Result<(), HistoryHalt> {
        if let (true, Some(request)) = (self.dice.chance(30), self.dice.choose(&self.people.answered)) {
            return self.request(request);
        }
        let Some(run) = self.some_run() else { return Ok(()) };
        self.people.next += 1;
        let message = message(&format!("say-{}", self.people.next));
        let on_busy = self.dice.choose_nonempty(&[OnBusy::Queue, OnBusy::Steer, OnBusy::Supersede]);
        self.request(PersonRequest::Say { run, message, on_busy })
    }

    /// Repeats every request without a response.
    pub(crate) fn repeat_unacknowledged(&mut self) -> Result<(), HistoryHalt> {
        for request in std::mem::take(&mut self.people.unanswered) {
            self.request(request)?;
        }
        Ok(())
    }

    fn request(&mut self, request: PersonRequest) -> Result<(), HistoryHalt> {
        self.note(|| match &request {
            PersonRequest::Create(new) => {
                let (id, mode) = (&new.message.key.message_id, new.settings.execution_mode);
                format!("a person creates a run ({id}, {mode:?})")
            }
            PersonRequest::Say { run, message, on_busy } => {
                format!("a person says {} to {run} ({on_busy:?})", message.key.message_id)
            }
        });
        let key = match &request {
            PersonRequest::Create(new) => new.message.key.clone(),
            PersonRequest::Say { message, .. } => message.key.clone(),
        };
        self.before_the_desk();
        let outcome = match self.as_received(&request) {
            PersonRequest::Create(new) => now(self.daemon.desk.create(*new)),
            PersonRequest::Say { run, message, on_busy } => {
                now(self.daemon.desk.message(run, message, Some(on_busy)))
            }
        };
        match self.judge(outcome) {
            Ok(Some(run)) => {
                self.people.acknowledged.push((key, run));
                self.people.answered.push(request);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(halt) => {
                self.people.unanswered.push(request);
                Err(halt)
            }
        }
    }

    /// The request as it is received; a fault may remove its keys.
    fn as_received(&mut self, request: &PersonRequest) -> PersonRequest {
        let mut request = request.clone();
        if let PersonRequest::Create(new) = &mut request {
            // Every received request gets a new run id, until its key is checked.
            let plan = self.plans[&new.run_id].clone();
            new.run_id = RunId(self.clock.stamp().id_seed);
            self.plans.insert(new.run_id, plan);
        }
        if self.fault == Some(crate::faults::RuleFault::ForgetMessageKeys) {
            self.people.next += 1;
            let suffix = format!("~{}", self.people.next);
            match &mut request {
                PersonRequest::Create(new) => {
                    new.message.key.message_id.push_str(&suffix);
                    new.idempotency = None;
                }
                PersonRequest::Say { message, .. } => message.key.message_id.push_str(&suffix),
            }
        }
        request
    }

    pub(crate) fn answer_question(&mut self) -> Result<(), HistoryHalt> {
        let open = self.open_questions();
        for id in &open {
            if !self.people.seen_questions.contains(id) {
                self.people.seen_questions.push(*id);
            }
        }
        // Mostly an open question, sometimes an old one.
        let from = if self.dice.chance(80) { &open } else { &self.people.seen_questions };
        let Some(id) = self.dice.choose(from) else { return Ok(()) };
        let times = 1 + self.dice.below(2);
        let key = self.dice.chance(50).then(|| format!("reply-{id}"));
        for _ in 0..times {
            let text = self.dice.choose_nonempty(&[
                "yes",
                "no",
                "stop",
                "continue",
                "try again",
                "use the blue one",
            ]);
            self.answer(id, text, key.clone())?;
        }
        Ok(())
    }

    pub(crate) fn answer_everything(&mut self) -> Result<(), HistoryHalt> {
        for id in self.open_questions() {
            // An approval accepts only yes or no; other questions accept any text.
            self.answer(id, "no, continue", None)?;
        }
        Ok(())
    }

    fn answer(&mut self, id: InteractionId, text: &str, key: Option<String>) -> Result<(), HistoryHalt> {
        self.note(|| format!("a person answers {id}: {text}"));
        let by = ReplyAuthor::Person("ada".into());
        let reply = InteractionReply { interaction_id: id, text: text.into(), by, idempotency_key: key };
        self.before_the_desk();
        let outcome = now(self.daemon.desk.reply(reply));
        let taken = matches!(outcome, Ok(RequestOutcome::Changed(_)));
        self.judge(outcome)?;
        if taken {
            self.people.taken_replies.push((id, text.to_owned()));
        }
        Ok(())
    }

    pub(crate) fn interrupt_run(&mut self) -> Result<(), HistoryHalt> {
        let Some(run) = self.some_run() else { return Ok(()) };
        self.note(|| format!("a person interrupts {run}"));
        self.take(run, RunEvent::InterruptRequested { by: "ada".into() })
    }

    pub(crate) fn cancel_run(&mut self) -> Result<(), HistoryHalt> {
        let Some(run) = self.some_run() else { return Ok(()) };
        self.note(|| format!("a person cancels {run}"));
        self.take(run, RunEvent::CancelRequested { by: "ada".into() })
    }

    pub(crate) fn conversation_speaks(&mut self) -> Result<(), HistoryHalt> {
        let outcome = now(self.daemon.desk.conversation_active("chat"));
        self.judge(outcome.map(|()| RequestOutcome::Absorbed)).map(|_| ())
    }

    fn open_questions(&self) -> Vec<InteractionId> {
        let open = now(self.store.open_interactions(PageRequest::first(100)));
        open.map(|listing| listing.items.iter().map(|it| it.interaction_id).collect()).unwrap_or_default()
    }

    fn some_run(&mut self) -> Option<RunId> {
        let runs = now(self.store.runs(None, PageRequest::first(100))).ok()?;
        let runs: Vec<_> = runs.items.iter().map(|run| run.run_id).collect();
        self.dice.choose(&runs)
    }

    fn random_settings(&mut self) -> RunSettings {
        let modes = [
            ExecutionMode::Auto,
            ExecutionMode::Interactive,
            ExecutionMode::Interactive,
            ExecutionMode::Chat,
        ];
        RunSettings {
            engine: "fake".into(),
            workspace: "/w".into(),
            execution_mode: self.dice.choose_nonempty(&modes),
            conversation_ref: self.dice.chance(60).then(|| "chat".into()),
            unanswered: self.dice.choose_nonempty(&[UnansweredPolicy::Strict, UnansweredPolicy::AutoDecide]),
            session_timeout_sec: Seconds(600),
            turn_timeout_sec: self.dice.chance(25).then_some(Seconds(300)),
            on_busy: OnBusy::Queue,
            model: None,
            sandbox: None,
            isolation: None,
            skill: None,
            labels: Default::default(),
        }
    }

    /// Classifies the response: an acknowledgement, a refusal, or no response.
    pub(crate) fn judge(
        &mut self,
        outcome: Result<RequestOutcome, RequestError>,
    ) -> Result<Option<RunId>, HistoryHalt> {
        match outcome {
            Ok(RequestOutcome::Changed(run)) => {
                let run_id = run.run_id;
                self.daemon.taken += 1;
                self.check_run(&run)?;
                Ok(Some(run_id))
            }
            Ok(RequestOutcome::Repeated(run)) => Ok(Some(run)),
            Ok(RequestOutcome::Absorbed)
            | Err(
                RequestError::Refused(_)
                | RequestError::KeyReused { .. }
                | RequestError::Shortage(_)
                | RequestError::Workspace(_),
            ) => Ok(None),
            Err(RequestError::Store(error)) => {
                self.note(|| format!("the daemon dies: {error}"));
                Err(HistoryHalt::Crashed)
            }
        }
    }
}

fn message(id: &str) -> InboundMessage {
    let key = MessageKey { channel: "chat".into(), message_id: id.to_owned() };
    InboundMessage { key, text: id.to_owned() }
}
