//! For a run, one event of every kind, in every shape that could matter to it.

use abide_domain::{
    delivery::Certainty,
    effect::{Effect, EffectNumber},
    engine::{Abilities, Handle, HandleType, Profile, ProfileKind},
    event::{Aftermath, Ending, Event, NewRun, Retry},
    failure::{Failure, FailureCode},
    id::{DeliveryId, Fresh, InteractionId, TurnId},
    inbound::{Message, MessageKey},
    interaction::{Kind, Policy, Purpose, Question},
    process::{Attempt, Exit, Position, Process},
    reply::{Answerer, Reply},
    run::Run,
    settings::OnBusy,
    time::Seconds,
};

/// When an event of the battery happens: now, or when the deadline that it speaks of is due.
pub(crate) fn when(run: &Run, event: &Event) -> i64 {
    match (event, run.deadline()) {
        (Event::DeadlinePassed { .. }, Some(deadline)) => deadline.at.0.max(run.updated_at.0 + 1),
        (_, _) => run.updated_at.0 + 1,
    }
}

/// The events, each with its name in the table. The same name may come in several shapes.
pub(crate) fn events(run: &Run) -> Vec<(&'static str, Event)> {
    let attempt = run.attempt().unwrap_or(run.last_attempt);
    let turn_id = run.turns.last().map_or(TurnId(Fresh(0)), |turn| turn.turn_id);
    let position = Position(run.live().map_or(0, |live| live.heard.0) + 1);
    let mut events = requests(run);
    events.extend(program(attempt));
    events.extend(speech(attempt, turn_id, position, run));
    events.extend(world(run));
    events.push((
        "stale news",
        ended(Attempt(attempt.0 + 7), turn_id, position, completed(), Aftermath::Alive),
    ));
    events.push(("stale news", Event::ContactLost { attempt: Attempt(attempt.0 + 7), within: None }));
    events.push((
        "stale news",
        ended(attempt, turn_id, Position(0), completed(), Aftermath::Exited(Exit::Code(0))),
    ));
    events
        .into_iter()
        .map(|(label, event)| (if label.is_empty() { event.name() } else { label }, event))
        .collect()
}

fn requests(run: &Run) -> Vec<(&'static str, Event)> {
    let message =
        Message { key: MessageKey { channel: "api".into(), message_id: "new".into() }, text: "more".into() };
    let says = |on_busy| Event::MessageArrived { message: message.clone(), on_busy: Some(on_busy) };
    let reply = |interaction_id, text: &str| {
        let by = Answerer::Person("ada".into());
        let reply = Reply { interaction_id, text: text.into(), by, idempotency_key: None };
        Event::ReplyArrived { reply }
    };
    let new = NewRun {
        run_id: run.run_id,
        settings: abide_domain::settings::Settings::clone(&run.settings),
        message: message.clone(),
        idempotency: None,
        rules: abide_domain::run::RULES,
    };
    let mut requests = vec![
        ("", Event::RunCreated(Box::new(new))),
        ("", Event::Admitted),
        ("MessageArrived (queue)", says(OnBusy::Queue)),
        ("MessageArrived (steer)", says(OnBusy::Steer)),
        ("MessageArrived (supersede)", says(OnBusy::Supersede)),
        ("ReplyArrived (to something else)", reply(InteractionId(Fresh(3)), "go on")),
        ("", Event::InterruptRequested { by: "ada".into() }),
        ("", Event::CancelRequested { by: "ada".into() }),
        ("", Event::ShutdownRequested),
        ("", Event::RulesAdopted { rules: abide_domain::run::RULES + 1 }),
    ];
    requests.extend(run.pending_interaction_id().map(|id| ("ReplyArrived", reply(id, "go on"))));
    requests.extend(run.pending_interaction_id().map(|id| ("ReplyArrived (no)", reply(id, "no"))));
    requests.extend(run.pending_interaction_id().map(|id| ("ReplyArrived (stop)", reply(id, "stop"))));
    requests
}

fn program(attempt: Attempt) -> Vec<(&'static str, Event)> {
    let process = Process { keeper: "k".into(), pid: 7, start_time: 7, boot_id: "b".into() };
    let failure = Failure::new(FailureCode::EngineNotFound, "no");
    let resolved = |kind| Event::ProfileResolved {
        profile: Profile { kind, reason: "r".into(), session_timeout_sec: Seconds(60) },
        abilities: Abilities::default(),
        handle: None,
        command: None,
    };
    vec![
        ("", resolved(ProfileKind::Resumable)),
        ("", resolved(ProfileKind::StickyProcess)),
        ("", Event::EngineUnusable { failure: failure.clone() }),
        ("", Event::AttemptStarted { attempt, process: process.clone() }),
        ("", Event::LaunchFailed { attempt, failure: failure.clone(), retry: Retry::Later }),
        ("", Event::LaunchFailed { attempt, failure: failure.clone(), retry: Retry::Never }),
        ("ProcessExited", Event::ProcessExited { attempt, exit: Exit::Code(0) }),
        ("ProcessExited (unseen)", Event::ProcessExited { attempt, exit: Exit::Unseen }),
        ("", Event::ContactLost { attempt, within: None }),
        ("", Event::ContactRestored { attempt, process }),
        ("", Event::RecoveryFailed { attempt, reason: "gone".into() }),
        ("", Event::SessionLost { failure }),
    ]
}

fn speech(attempt: Attempt, turn_id: TurnId, position: Position, run: &Run) -> Vec<(&'static str, Event)> {
    let question = Question {
        kind: Kind::OpenText,
        prompt: "which?".into(),
        options: vec![],
        ui_hints: None,
        default_decision_policy: Policy::EngineJudgement,
        context: None,
        hidden: None,
    };
    let announced = |value: &str| {
        let handle = Handle {
            engine: "any".into(),
            handle_type: HandleType::SessionId,
            handle_value: value.into(),
            created_at_turn: 1,
        };
        Event::HandleAnnounced { attempt, position, handle }
    };
    let known = run.handle.as_ref().map_or("new", |handle| handle.handle_value.as_str());
    let gate = |purpose, question| Event::GateRaised {
        attempt,
        turn_id,
        position,
        gate: "g".into(),
        purpose,
        question,
    };
    let mut speech = vec![
        ("", announced(known)),
        ("HandleAnnounced (another)", announced("another")),
        ("", Event::Progressed { attempt, position, text: String::new() }),
        ("", gate(Purpose::Approval, question.clone())),
        ("", gate(Purpose::Input, question.clone())),
        ("", Event::GateWithdrawn { attempt, position, gate: "g".into() }),
    ];
    let endings = [
        ("TurnEnded (completed)", completed()),
        ("TurnEnded (asked)", Ending::Asked { text: String::new(), question }),
        ("TurnEnded (failed)", Ending::Failed { failure: Failure::new(FailureCode::EngineFailed, "no") }),
        ("TurnEnded (interrupted)", Ending::Interrupted),
    ];
    for (label, ending) in endings {
        for aftermath in [Aftermath::Alive, Aftermath::Exited(Exit::Code(0))] {
            speech.push((label, ended(attempt, turn_id, position, ending.clone(), aftermath)));
        }
    }
    speech
}

fn world(run: &Run) -> Vec<(&'static str, Event)> {
    let delivery_id = run.owed.iter().find_map(|owed| match owed.effect {
        Effect::Deliver { delivery_id } => Some(delivery_id),
        Effect::Probe { .. }
        | Effect::Launch { .. }
        | Effect::Say { .. }
        | Effect::Answer { .. }
        | Effect::Steer { .. }
        | Effect::Interrupt { .. }
        | Effect::Terminate { .. }
        | Effect::Recover { .. } => None,
    });
    let delivery_id = delivery_id.unwrap_or(DeliveryId(Fresh(5)));
    let effect = run.owed.first().map_or(EffectNumber(0), |owed| owed.number);
    let mut world = vec![
        ("", Event::DeliveryConfirmed { delivery_id }),
        ("", Event::DeliveryFailed { delivery_id, certainty: Certainty::Unknown }),
        ("", Event::ConversationSpoke),
        ("", Event::EffectPerformed { effect }),
        ("", Event::EffectMissed { effect }),
        (
            "DeadlinePassed (another)",
            Event::DeadlinePassed { deadline: abide_domain::deadline::DeadlineKind::Turn(Attempt(99)) },
        ),
    ];
    let due = run.deadline().map(|deadline| Event::DeadlinePassed { deadline: deadline.kind });
    world.extend(due.map(|event| ("DeadlinePassed", event)));
    world
}

fn completed() -> Ending {
    Ending::Completed { text: "done".into() }
}

fn ended(
    attempt: Attempt,
    turn_id: TurnId,
    position: Position,
    ending: Ending,
    aftermath: Aftermath,
) -> Event {
    Event::TurnEnded { attempt, turn_id, position, ending, aftermath }
}
