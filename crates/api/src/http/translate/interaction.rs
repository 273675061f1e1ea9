//! Questions and how each was resolved.

use abide_domain::interaction::{
    Asker, Interaction, InteractionState, Kind, Policy, Purpose, Question, ResolutionMode,
};
use abide_wire::interaction as wire;

use super::{time, word};

/// A question from its opening to its end.
pub(in crate::http) fn interaction(interaction: &Interaction) -> wire::Interaction {
    let question = &interaction.question;
    let (state, answer, closed) = match &interaction.state {
        InteractionState::Open => (wire::InteractionState::Open, None, None),
        InteractionState::Answered(resolution) => (wire::InteractionState::Answered, Some(resolution), None),
        InteractionState::Closed { at, because } => {
            (wire::InteractionState::Closed, None, Some((*at, word(because))))
        }
    };
    let closed_at = closed.as_ref().map(|(at, _)| *at);
    wire::Interaction {
        interaction_id: interaction.interaction_id.to_string(),
        run_id: interaction.run_id.to_string(),
        turn_id: interaction.turn_id.to_string(),
        kind: kind(question.kind),
        prompt: question.prompt.clone(),
        options: options(question),
        // The hints are an engine's own text: what is no JSON is shown as the text that it is.
        ui_hints: question.ui_hints.as_ref().map(|hints| {
            serde_json::from_str(hints).unwrap_or_else(|_| serde_json::Value::String(hints.clone()))
        }),
        default_decision_policy: match question.default_decision_policy {
            Policy::EngineJudgement => wire::DecisionPolicy::EngineJudgement,
            Policy::SafeDefault => wire::DecisionPolicy::SafeDefault,
            Policy::Abort => wire::DecisionPolicy::Abort,
        },
        asked_by: asked_by(&interaction.asker).to_owned(),
        state,
        opened_at: time(interaction.opened_at),
        deadline_at: interaction.deadline_at.map(time),
        resolution_mode: answer.map(|answer| match answer.resolution_mode {
            ResolutionMode::UserReply => wire::ResolutionMode::UserReply,
            ResolutionMode::AutoDecideTimeout => wire::ResolutionMode::AutoDecideTimeout,
        }),
        resolved_at: answer.map(|answer| answer.resolved_at).or(closed_at).map(time),
        resolved_by: answer.map(|answer| answer.resolved_by.clone()),
        auto_decide_reason: answer.and_then(|answer| answer.auto_decide_reason).map(|reason| word(&reason)),
        reply: answer.map(|answer| answer.text.clone()),
        closed_because: closed.map(|(_, because)| because),
    }
}

/// Suggested answers.
pub(super) fn options(question: &Question) -> Vec<wire::Choice> {
    let choice = |choice: &abide_domain::interaction::Choice| wire::Choice {
        label: choice.label.clone(),
        safe: choice.safe,
    };
    question.options.iter().map(choice).collect()
}

fn kind(kind: Kind) -> wire::InteractionKind {
    match kind {
        Kind::ChooseOne => wire::InteractionKind::ChooseOne,
        Kind::Confirm => wire::InteractionKind::Confirm,
        Kind::FillFields => wire::InteractionKind::FillFields,
        Kind::OpenText => wire::InteractionKind::OpenText,
        Kind::RiskAck => wire::InteractionKind::RiskAck,
    }
}

fn asked_by(asker: &Asker) -> &'static str {
    match asker {
        Asker::TurnEnd => "turn_end",
        Asker::Gate { purpose: Purpose::Approval, .. } => "approval",
        Asker::Gate { purpose: Purpose::Input, .. } => "input",
        Asker::Abide(_) => "abide",
    }
}
