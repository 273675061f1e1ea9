//! Fake people: they send requests, repeat them, answer late, and retry without a response.

use abide_daemon::{RequestError, RequestOutcome};
use abide_domain::{
    event::{IdempotencyClaim, NewRun},
    id::{InteractionId, RunId},
    inbound::{InboundMessage, MessageKey},
    refused::RequestRefused,
    reply::{InteractionReply, ReplyAuthor},
    settings::{ExecutionMode, OnBusy, RunSettings, UnansweredPolicy},
    time::Seconds,
};
use abide_ports::{
    clock::Clock,
    store::{PageRequest, StoreQueries},
};

use crate::{
    daemon::{SimRequest, now},
    engine::EnginePlan,
    world::{HistoryHalt, SimWorld},
};

/// The requests of people and the responses.
#[derive(Default)]
pub(crate) struct SimPeople {
    pub(crate) behave: bool,
    next: u32,
    runs: usize,
    /// Requests in progress. A client that goes away drops its request.
    pub(crate) requests: Vec<(PersonRequest, SimRequest)>,
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
pub(crate) enum PersonRequest {
    Create(Box<NewRun>),
    Say { run: RunId, message: InboundMessage, on_busy: OnBusy },
    Answer(InteractionReply),
    Interrupt(RunId),
    Cancel(RunId),
    Speak,
}

impl SimPeople {
    /// The daemon has died. Unanswered requests are repeated later.
    pub(crate) fn lose_connections(&mut self) {
        let lost = self.requests.drain(..).map(|(request, _)| request);
        self.unanswered.extend(lost.filter(PersonRequest::is_repeated));
    }
}

impl PersonRequest {
    /// Whether a request without a response is repeated. It carries a key.
    fn is_repeated(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Say { .. })
    }
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
        let run_id = RunId(self.clock.stamp().id_seed);
        let settings = self.random_settings(&engine_name(run_id), run_id);
        let idempotency = Some(IdempotencyClaim { key, fingerprint: "same".into() });
        self.install_engine(run_id);
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
            PersonRequest::Answer(reply) => {
                format!("a person answers {}: {}", reply.interaction_id, reply.text)
            }
            PersonRequest::Interrupt(run) => format!("a person interrupts {run}"),
            PersonRequest::Cancel(run) => format!("a person cancels {run}"),
            PersonRequest::Speak => "the conversation is active".to_owned(),
        });
        let daemon = self.daemon.parts.daemon.clone();
        let received = self.as_received(&request);
        let future: SimRequest = Box::pin(async move {
            match received {
                PersonRequest::Create(new) => daemon.create(*new).await,
                PersonRequest::Say { run, message, on_busy } => {
                    daemon.message(run, message, Some(on_busy)).await
                }
                PersonRequest::Answer(reply) => {
                    let asked = daemon.question(reply.interaction_id).await?;
                    let stale = RequestRefused::StaleInteraction { interaction_id: reply.interaction_id };
                    daemon.reply(reply, asked.ok_or(stale)?).await
                }
                PersonRequest::Interrupt(run) => daemon.interrupt(run, "ada").await,
                PersonRequest::Cancel(run) => daemon.cancel(run, "ada").await,
                PersonRequest::Speak => {
                    daemon.conversation_active("chat").await.map(|()| RequestOutcome::Absorbed)
                }
            }
        });
        self.people.requests.push((request, future));
        self.poll_requests()?;
        // Some clients go away before the response.
        if !self.people.behave
            && self.dice.chance(10)
            && let Some((request, _)) = self.people.requests.pop()
            && request.is_repeated()
        {
            self.note(|| "the client goes away".into());
            self.people.unanswered.push(request);
        }
        Ok(())
    }

    /// Records the response to a request.
    pub(crate) fn on_answer(
        &mut self,
        request: PersonRequest,
        outcome: Result<RequestOutcome, RequestError>,
    ) -> Result<(), HistoryHalt> {
        self.note(|| match &outcome {
            Ok(RequestOutcome::Changed(run)) => format!("accepted by {}", run.run_id),
            Ok(outcome) => format!("answered: {outcome:?}"),
            Err(error) => format!("refused: {error}"),
        });
        let run = match &outcome {
            Ok(RequestOutcome::Changed(run)) => run.run_id,
            Ok(RequestOutcome::Repeated(run)) => *run,
            Ok(RequestOutcome::Absorbed) => return Ok(()),
            // It may have been accepted, so it is repeated.
            Err(RequestError::Store(_) | RequestError::Shortage(_)) => {
                if request.is_repeated() {
                    self.people.unanswered.push(request);
                }
                return Ok(());
            }
            Err(RequestError::Refused(_) | RequestError::KeyReused { .. } | RequestError::Workspace(_)) => {
                return Ok(());
            }
        };
        let key = match &request {
            PersonRequest::Create(new) => new.message.key.clone(),
            PersonRequest::Say { message, .. } => message.key.clone(),
            PersonRequest::Answer(reply) => {
                if let Ok(RequestOutcome::Changed(_)) = outcome {
                    self.people.taken_replies.push((reply.interaction_id, reply.text.clone()));
                }
                return Ok(());
            }
            PersonRequest::Interrupt(_) | PersonRequest::Cancel(_) | PersonRequest::Speak => return Ok(()),
        };
        self.people.acknowledged.push((key, run));
        self.people.answered.push(request);
        Ok(())
    }

    /// The request as it is received; a fault may remove its keys.
    fn as_received(&mut self, request: &PersonRequest) -> PersonRequest {
        let mut request = request.clone();
        if let PersonRequest::Create(new) = &mut request {
            // Every received request gets a new run id, until its key is checked.
            new.run_id = RunId(self.clock.stamp().id_seed);
            new.settings.workspace = format!("w/{}", new.run_id);
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
                PersonRequest::Answer(_)
                | PersonRequest::Interrupt(_)
                | PersonRequest::Cancel(_)
                | PersonRequest::Speak => {}
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
        let by = ReplyAuthor::Person("ada".into());
        let reply = InteractionReply { interaction_id: id, text: text.into(), by, idempotency_key: key };
        self.request(PersonRequest::Answer(reply))
    }

    pub(crate) fn interrupt_run(&mut self) -> Result<(), HistoryHalt> {
        let Some(run) = self.some_run() else { return Ok(()) };
        self.request(PersonRequest::Interrupt(run))
    }

    pub(crate) fn cancel_run(&mut self) -> Result<(), HistoryHalt> {
        let Some(run) = self.some_run() else { return Ok(()) };
        self.request(PersonRequest::Cancel(run))
    }

    pub(crate) fn conversation_speaks(&mut self) -> Result<(), HistoryHalt> {
        self.request(PersonRequest::Speak)
    }

    /// Installs the engine of a new run.
    fn install_engine(&mut self, run: RunId) {
        let (name, plan) = (engine_name(run), EnginePlan::random(&mut self.dice));
        self.catalogue.plans().insert(name.clone(), plan.clone());
        self.processes.table().engines.plans.insert(name, plan);
    }

    fn open_questions(&self) -> Vec<InteractionId> {
        let open = now(self.store.open_interactions(PageRequest::first(100)));
        open.map(|listing| listing.items.iter().map(|it| it.interaction_id).collect()).unwrap_or_default()
    }

    pub(crate) fn some_run(&mut self) -> Option<RunId> {
        let runs = now(self.store.runs(None, PageRequest::first(100))).ok()?;
        let runs: Vec<_> = runs.items.iter().map(|run| run.run_id).collect();
        self.dice.choose(&runs)
    }

    fn random_settings(&mut self, engine: &str, run: RunId) -> RunSettings {
        let modes = [
            ExecutionMode::Auto,
            ExecutionMode::Interactive,
            ExecutionMode::Interactive,
            ExecutionMode::Chat,
        ];
        RunSettings {
            engine: engine.to_owned(),
            workspace: format!("w/{run}"),
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
}

/// Each run has an engine of its own, with its own behaviour.
fn engine_name(run: RunId) -> String {
    format!("fake-{run}")
}

fn message(id: &str) -> InboundMessage {
    let key = MessageKey { channel: "chat".into(), message_id: id.to_owned() };
    InboundMessage { key, text: id.to_owned() }
}
