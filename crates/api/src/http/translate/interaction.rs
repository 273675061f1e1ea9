//! Converts questions and their resolutions to wire types.

use std::collections::BTreeMap;

use abide_domain::{
    approval::{ApprovalVerdict, option_verdict},
    context::{
        ApprovalContext, ApprovalSubject, ChangeKind, CommandLine, FieldValue, HiddenContent, RequestField,
    },
    interaction::{
        DecisionPolicy, GatePurpose, Interaction, InteractionKind, InteractionOrigin, InteractionState,
        Question, ResolutionMode,
    },
    policy::AutoDecideReason,
};
use abide_wire::interaction as wire;
use serde_json::{Map, Value};

use super::{serde_name, time};

pub(in crate::http) fn interaction(interaction: &Interaction) -> wire::InteractionView {
    let question = &interaction.question;
    let (state, answer, closed) = match &interaction.state {
        InteractionState::Open => (wire::InteractionStateValue::Open, None, None),
        InteractionState::Answered(resolution) => {
            (wire::InteractionStateValue::Answered, Some(resolution), None)
        }
        InteractionState::Closed { at, reason } => {
            (wire::InteractionStateValue::Closed, None, Some((*at, serde_name(reason))))
        }
    };
    let closed_at = closed.as_ref().map(|(at, _)| *at);
    wire::InteractionView {
        interaction_id: interaction.interaction_id.to_string(),
        run_id: interaction.run_id.to_string(),
        turn_id: interaction.turn_id.to_string(),
        kind: kind(question.kind),
        prompt: question.prompt.clone(),
        options: options(question, interaction.is_approval()),
        // Hints are text of the engine. Hints that are not valid JSON are returned as a string.
        ui_hints: question.ui_hints.as_ref().map(|hints| {
            serde_json::from_str(hints).unwrap_or_else(|_| serde_json::Value::String(hints.clone()))
        }),
        context: question.context.as_deref().map(context),
        hidden: question.hidden.as_deref().map(hidden),
        default_decision_policy: decision_policy(question.default_decision_policy),
        asked_by: origin_name(&interaction.origin).to_owned(),
        state,
        opened_at: time(interaction.opened_at),
        deadline_at: interaction.deadline_at.map(time),
        resolution_mode: answer.map(|answer| match answer.resolution_mode {
            ResolutionMode::UserReply => wire::ResolutionModeValue::UserReply,
            ResolutionMode::AutoDecideTimeout => wire::ResolutionModeValue::AutoDecideTimeout,
        }),
        resolved_at: answer.map(|answer| answer.resolved_at).or(closed_at).map(time),
        resolved_by: answer.map(|answer| answer.resolved_by.clone()),
        auto_decide_reason: answer.and_then(|answer| answer.auto_decide_reason).map(auto_decide_reason),
        reply: answer.map(|answer| answer.text.clone()),
        closed_because: closed.map(|(_, because)| because),
        verdict: answer.and_then(|answer| answer.verdict).map(verdict),
    }
}

pub(super) fn context(context: &ApprovalContext) -> wire::ApprovalContextView {
    let ApprovalContext { subject, tool, remarks, other_fields, truncated } = context;
    let mut view = wire::ApprovalContextView {
        kind: wire::ApprovalContextType::Tool,
        shell: None,
        argv: None,
        cwd: None,
        files: None,
        name: None,
        input: None,
        tool: tool.clone(),
        other_fields: fields(other_fields),
        remarks: remarks.clone(),
        truncated: *truncated,
    };
    match subject {
        ApprovalSubject::Command { line, cwd } => {
            view.kind = wire::ApprovalContextType::Command;
            view.cwd.clone_from(cwd);
            match line {
                CommandLine::Shell(shell) => view.shell = Some(shell.clone()),
                CommandLine::Argv(argv) => view.argv = Some(argv.clone()),
            }
        }
        ApprovalSubject::FileChange { files } => {
            view.kind = wire::ApprovalContextType::FileChange;
            let files = files.iter().map(|file| wire::FileChangeView {
                path: file.path.clone(),
                change: match file.change {
                    ChangeKind::Write => "write",
                    ChangeKind::Edit => "edit",
                    ChangeKind::Delete => "delete",
                }
                .to_owned(),
                diff: file.diff.clone(),
                truncated: file.truncated,
            });
            view.files = Some(files.collect());
        }
        ApprovalSubject::Tool { name, input } => {
            view.name = Some(name.clone());
            view.input = Some(fields(input));
        }
    }
    view
}

/// Converts named values to an object. Duplicate names keep both values.
fn fields(fields: &[RequestField]) -> Map<String, Value> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut object = Map::new();
    for RequestField { name, value } in fields {
        let count = seen.entry(name).or_default();
        *count += 1;
        let name = if *count == 1 { name.clone() } else { format!("{name} ({count})") };
        let value = match value {
            FieldValue::Text(text) => Value::String(text.clone()),
            FieldValue::Json(json) => {
                serde_json::from_str(json).unwrap_or_else(|_| Value::String(json.clone()))
            }
        };
        object.insert(name, value);
    }
    object
}

pub(super) fn hidden(hidden: &HiddenContent) -> wire::HiddenContentView {
    let HiddenContent { bytes, content_bytes, sha256 } = hidden;
    wire::HiddenContentView { bytes: *bytes, content_bytes: *content_bytes, sha256: sha256.clone() }
}

pub(in crate::http) fn verdict(verdict: ApprovalVerdict) -> wire::VerdictValue {
    match verdict {
        ApprovalVerdict::Approved => wire::VerdictValue::Approved,
        ApprovalVerdict::Declined => wire::VerdictValue::Declined,
    }
}

pub(super) fn options(question: &Question, is_approval: bool) -> Vec<wire::InteractionOptionView> {
    let choice = |choice: &abide_domain::interaction::InteractionOption| wire::InteractionOptionView {
        label: choice.label.clone(),
        safe: choice.safe,
        approves: is_approval
            .then(|| option_verdict(question, choice))
            .flatten()
            .map(|verdict| verdict == ApprovalVerdict::Approved),
    };
    question.options.iter().map(choice).collect()
}

pub(super) fn decision_policy(policy: DecisionPolicy) -> wire::DecisionPolicyValue {
    match policy {
        DecisionPolicy::EngineJudgement => wire::DecisionPolicyValue::EngineJudgement,
        DecisionPolicy::SafeDefault => wire::DecisionPolicyValue::SafeDefault,
        DecisionPolicy::Abort => wire::DecisionPolicyValue::Abort,
    }
}

pub(super) fn auto_decide_reason(reason: AutoDecideReason) -> wire::AutoDecideReasonValue {
    match reason {
        AutoDecideReason::UserNoReply => wire::AutoDecideReasonValue::UserNoReply,
        AutoDecideReason::AutoMode => wire::AutoDecideReasonValue::AutoMode,
    }
}

pub(super) fn kind(kind: InteractionKind) -> wire::InteractionKindValue {
    match kind {
        InteractionKind::ChooseOne => wire::InteractionKindValue::ChooseOne,
        InteractionKind::Confirm => wire::InteractionKindValue::Confirm,
        InteractionKind::FillFields => wire::InteractionKindValue::FillFields,
        InteractionKind::OpenText => wire::InteractionKindValue::OpenText,
        InteractionKind::RiskAck => wire::InteractionKindValue::RiskAck,
    }
}

fn origin_name(asker: &InteractionOrigin) -> &'static str {
    match asker {
        InteractionOrigin::TurnEnd => "turn_end",
        InteractionOrigin::Gate { purpose: GatePurpose::Approval, .. } => "approval",
        InteractionOrigin::Gate { purpose: GatePurpose::Input, .. } => "input",
        InteractionOrigin::Abide(_) => "abide",
    }
}
