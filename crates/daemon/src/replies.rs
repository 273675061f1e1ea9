//! Replies to questions: the first answer counts, and a number stands for the option with that number.

use std::sync::Arc;

use abide_domain::{
    event::RunEvent,
    id::InteractionId,
    interaction::{Interaction, InteractionKind, InteractionOption, Question},
    refused::RequestRefused,
    reply::{self, InteractionReply, ReplyAcceptance},
    run::Run,
};
use abide_ports::store::StoreError;

use crate::{error::RequestError, run_actor::RequestOutcome, service::Daemon};

/// A question and its run, as they were read.
#[derive(Clone, Debug)]
pub struct QuestionAndRun {
    pub interaction: Interaction,
    run: Arc<Run>,
}

impl Daemon {
    /// The question with this id, for [`Self::reply`].
    pub async fn question(&self, id: InteractionId) -> Result<Option<QuestionAndRun>, StoreError> {
        let asked = self.store().interaction_with_run(id).await?;
        Ok(asked.map(|(interaction, run)| QuestionAndRun { interaction, run: Arc::new(run) }))
    }

    /// Answers a question, which the caller has read. The first answer counts. It is accepted even with too little disk
    /// space, because it is small and lets a run finish.
    ///
    /// A run drops answered interactions, but the ledger keeps them. It distinguishes repeated from late replies.
    pub async fn reply(
        &self,
        mut reply: InteractionReply,
        asked: QuestionAndRun,
    ) -> Result<RequestOutcome, RequestError> {
        let QuestionAndRun { interaction, run } = asked;
        let number = only_number(&reply.text);
        if let Some(label) = number.and_then(|number| chosen_label(&interaction.question, number)) {
            reply.text = label;
        }
        let interaction_id = reply.interaction_id;
        let stale = RequestRefused::StaleInteraction { interaction_id };
        let run_id = run.run_id;
        let event = RunEvent::ReplyArrived { reply: reply.clone() };
        match self.request_for(run_id, event, Some(run)).await {
            Err(RequestError::Refused(refused)) if refused == stale => {
                let recorded = self.store().interaction(interaction_id).await?.ok_or(stale)?;
                match reply::accept(&recorded, &reply, self.now())? {
                    ReplyAcceptance::Duplicate => Ok(RequestOutcome::Repeated(run_id)),
                    ReplyAcceptance::First(_) => Err(refused.into()),
                }
            }
            answered => answered,
        }
    }
}

/// The number of which a text consists, if it has one to three digits.
fn only_number(text: &str) -> Option<usize> {
    let digits = text.trim();
    let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// The label of the option with this number, from 1 (I66). A number that is itself a label is not translated.
fn chosen_label(question: &Question, number: usize) -> Option<String> {
    let is_label = |choice: &InteractionOption| choice.label.trim() == number.to_string();
    if question.kind != InteractionKind::ChooseOne || question.options.iter().any(is_label) {
        return None;
    }
    let choice = question.options.get(number.checked_sub(1)?)?;
    Some(choice.label.clone())
}
