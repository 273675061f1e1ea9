//! For a run, events of all kinds, in all variants that are relevant to it.

use abide_domain::{
    delivery::DeliveryFailure,
    effect::{Effect, EffectNumber},
    engine::{EngineInteractiveProfile, EngineSessionHandle, HandleType, ProfileKind, RunAbilities},
    event::{LaunchRetry, NewRun, ProcessAfterTurn, RunEvent, TurnOutcome},
    failure::{FailureCode, RunFailure},
    id::{DeliveryId, IdSeed, InteractionId, TurnId},
    inbound::{InboundMessage, MessageKey},
    interaction::{DecisionPolicy, GatePurpose, InteractionKind, Question},
    process::{Attempt, ExitStatus, OutputPosition, ProcessBinding},
    reply::{InteractionReply, ReplyAuthor},
    run::Run,
    settings::OnBusy,
    time::Seconds,
};

/// The time of an event: now, or the deadline that the event refers to.
pub(crate) fn event_time(run: &Run, event: &RunEvent) -> i64 {
    match (event, run.deadline()) {
        (RunEvent::DeadlinePassed { .. }, Some(deadline)) => deadline.at.0.max(run.updated_at.0 + 1),
        (_, _) => run.updated_at.0 + 1,
    }
}

/// The events with their names in the table. Several variants may share a name.
pub(crate) fn events(run: &Run) -> Vec<(&'static str, RunEvent)> {
    let attempt = run.attempt().unwrap_or(run.last_attempt);
    let turn_id = run.turns.last().map_or(TurnId(IdSeed(0)), |turn| turn.turn_id);
    let position = OutputPosition(run.live().map_or(0, |live| live.processed_position.0) + 1);
    let mut events = requests(run);
    events.extend(process_events(attempt));
    events.extend(output_events(attempt, turn_id, position, run));
    events.extend(environment_events(run));
    events.push((
        "stale news",
        ended(Attempt(attempt.0 + 7), turn_id, position, completed(), ProcessAfterTurn::Alive),
    ));
    events.push((
        "stale news",
        RunEvent::ContactLost { attempt: Attempt(attempt.0 + 7), search_timeout_sec: None },
    ));
    events.push((
        "stale news",
        ended(
            attempt,
            turn_id,
            OutputPosition(0),
            completed(),
            ProcessAfterTurn::Exited(ExitStatus::Code(0)),
        ),
    ));
    events
        .into_iter()
        .map(|(label, event)| (if label.is_empty() { event.name() } else { label }, event))
        .collect()
}

fn requests(run: &Run) -> Vec<(&'static str, RunEvent)> {
    let message = InboundMessage {
        key: MessageKey { channel: "api".into(), message_id: "new".into() },
        text: "more".into(),
    };
    let says = |on_busy| RunEvent::MessageArrived { message: message.clone(), on_busy: Some(on_busy) };
    let reply = |interaction_id, text: &str| {
        let by = ReplyAuthor::Person("ada".into());
        let reply = InteractionReply { interaction_id, text: text.into(), by, idempotency_key: None };
        RunEvent::ReplyArrived { reply }
    };
    let new = NewRun {
        run_id: run.run_id,
        settings: abide_domain::settings::RunSettings::clone(&run.settings),
        message: message.clone(),
        idempotency: None,
        rules: abide_domain::run::CURRENT_RULES_VERSION,
    };
    let mut requests = vec![
        ("", RunEvent::RunCreated(Box::new(new))),
        ("", RunEvent::Admitted),
        ("MessageArrived (queue)", says(OnBusy::Queue)),
        ("MessageArrived (steer)", says(OnBusy::Steer)),
        ("MessageArrived (supersede)", says(OnBusy::Supersede)),
        ("ReplyArrived (to something else)", reply(InteractionId(IdSeed(3)), "continue")),
        ("", RunEvent::InterruptRequested { by: "ada".into() }),
        ("", RunEvent::CancelRequested { by: "ada".into() }),
        ("", RunEvent::ShutdownRequested),
        ("", RunEvent::RulesAdopted { rules: abide_domain::run::CURRENT_RULES_VERSION + 1 }),
    ];
    requests.extend(run.pending_interaction_id().map(|id| ("ReplyArrived", reply(id, "continue"))));
    requests.extend(run.pending_interaction_id().map(|id| ("ReplyArrived (no)", reply(id, "no"))));
    requests.extend(run.pending_interaction_id().map(|id| ("ReplyArrived (stop)", reply(id, "stop"))));
    requests
}

fn process_events(attempt: Attempt) -> Vec<(&'static str, RunEvent)> {
    let process = ProcessBinding { keeper: "k".into(), pid: 7, start_time: 7, boot_id: "b".into() };
    let failure = RunFailure::new(FailureCode::EngineNotFound, "no");
    let resolved = |kind| RunEvent::ProfileResolved {
        profile: EngineInteractiveProfile { kind, reason: "r".into(), session_timeout_sec: Seconds(60) },
        abilities: RunAbilities::default(),
        handle: None,
        command: None,
    };
    vec![
        ("", resolved(ProfileKind::Resumable)),
        ("", resolved(ProfileKind::StickyProcess)),
        ("", RunEvent::EngineUnusable { failure: failure.clone() }),
        ("", RunEvent::AttemptStarted { attempt, process: process.clone() }),
        ("", RunEvent::LaunchFailed { attempt, failure: failure.clone(), retry: LaunchRetry::Later }),
        ("", RunEvent::LaunchFailed { attempt, failure: failure.clone(), retry: LaunchRetry::Never }),
        ("ProcessExited", RunEvent::ProcessExited { attempt, exit: ExitStatus::Code(0) }),
        ("ProcessExited (unknown)", RunEvent::ProcessExited { attempt, exit: ExitStatus::Unknown }),
        ("", RunEvent::ContactLost { attempt, search_timeout_sec: None }),
        ("", RunEvent::ContactRestored { attempt, process }),
        ("", RunEvent::RecoveryFailed { attempt, reason: "gone".into() }),
        ("", RunEvent::SessionLost { failure }),
    ]
}

fn output_events(
    attempt: Attempt,
    turn_id: TurnId,
    position: OutputPosition,
    run: &Run,
) -> Vec<(&'static str, RunEvent)> {
    let question = Question {
        kind: InteractionKind::OpenText,
        prompt: "which?".into(),
        options: vec![],
        ui_hints: None,
        default_decision_policy: DecisionPolicy::EngineJudgement,
        context: None,
        hidden: None,
    };
    let announced = |value: &str| {
        let handle = EngineSessionHandle {
            engine: "any".into(),
            handle_type: HandleType::SessionId,
            handle_value: value.into(),
            created_at_turn: 1,
        };
        RunEvent::HandleAnnounced { attempt, position, handle }
    };
    let known = run.handle.as_ref().map_or("new", |handle| handle.handle_value.as_str());
    let gate = |purpose, question| RunEvent::GateRaised {
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
        ("", RunEvent::Progressed { attempt, position, text: String::new() }),
        ("", gate(GatePurpose::Approval, question.clone())),
        ("", gate(GatePurpose::Input, question.clone())),
        ("", RunEvent::GateWithdrawn { attempt, position, gate: "g".into() }),
    ];
    let endings = [
        ("TurnEnded (completed)", completed()),
        ("TurnEnded (asked)", TurnOutcome::Asked { text: String::new(), question }),
        (
            "TurnEnded (failed)",
            TurnOutcome::Failed { failure: RunFailure::new(FailureCode::EngineFailed, "no") },
        ),
        ("TurnEnded (interrupted)", TurnOutcome::Interrupted),
    ];
    for (label, ending) in endings {
        for aftermath in [ProcessAfterTurn::Alive, ProcessAfterTurn::Exited(ExitStatus::Code(0))] {
            speech.push((label, ended(attempt, turn_id, position, ending.clone(), aftermath)));
        }
    }
    speech
}

fn environment_events(run: &Run) -> Vec<(&'static str, RunEvent)> {
    let delivery_id = run.pending_effects.iter().find_map(|owed| match owed.effect {
        Effect::Deliver { delivery_id } => Some(delivery_id),
        Effect::Probe { .. }
        | Effect::Launch { .. }
        | Effect::SendPrompt { .. }
        | Effect::Answer { .. }
        | Effect::Steer { .. }
        | Effect::Interrupt { .. }
        | Effect::Terminate { .. }
        | Effect::Recover { .. } => None,
    });
    let delivery_id = delivery_id.unwrap_or(DeliveryId(IdSeed(5)));
    let effect = run.pending_effects.first().map_or(EffectNumber(0), |owed| owed.number);
    let mut world = vec![
        ("", RunEvent::DeliveryConfirmed { delivery_id }),
        ("", RunEvent::DeliveryFailed { delivery_id, certainty: DeliveryFailure::Unknown }),
        ("", RunEvent::ConversationActive),
        ("", RunEvent::EffectPerformed { effect }),
        ("", RunEvent::EffectObsolete { effect }),
        (
            "DeadlinePassed (another)",
            RunEvent::DeadlinePassed { deadline: abide_domain::deadline::DeadlineKind::Turn(Attempt(99)) },
        ),
    ];
    let due = run.deadline().map(|deadline| RunEvent::DeadlinePassed { deadline: deadline.kind });
    world.extend(due.map(|event| ("DeadlinePassed", event)));
    world
}

fn completed() -> TurnOutcome {
    TurnOutcome::Completed { text: "done".into() }
}

fn ended(
    attempt: Attempt,
    turn_id: TurnId,
    position: OutputPosition,
    ending: TurnOutcome,
    aftermath: ProcessAfterTurn,
) -> RunEvent {
    RunEvent::TurnEnded { attempt, turn_id, position, outcome: ending, process_after: aftermath }
}
