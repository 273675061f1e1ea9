//! User input while a run is followed: parsed as an answer or a message, and sent.
//!
//! Each input has an idempotency key, so that it can be sent again after a lost connection. Reading the terminal is not
//! part of this module.

use abide_wire::{
    event::{EventEnvelope, RunEventView},
    interaction::InteractionView,
    message::SendMessageRequest,
};

use super::{new_idempotency_key, question};
use crate::{client::DaemonClient, error::CliError};

/// Input from the first typed line until the daemon has accepted it.
#[derive(Debug, Default)]
pub(super) struct InputBuffer {
    /// Lines of an unfinished multi-line input.
    draft: String,
    /// Input that the daemon has not accepted yet.
    unsent: Option<UnsentInput>,
    /// Ids of input sent from here, whose events are not printed.
    sent_ids: Vec<String>,
}

#[derive(Clone, Debug)]
enum UnsentInput {
    Reply { interaction: String, text: String, key: String },
    Message(SendMessageRequest),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum TypedResult {
    /// The input continues in the next line.
    Continues,
    /// The line is empty.
    Empty,
    /// The input is complete and ready to send.
    Ready,
    /// The input is invalid, for this reason.
    Invalid(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    NothingToSend,
    Accepted,
    /// The daemon cannot accept it now.
    Retry,
    /// The daemon rejected it.
    Refused(CliError),
}

impl InputBuffer {
    /// Takes a line, or several pasted lines, as the answer to a question or as a message.
    pub(super) fn push_line(&mut self, typed: &str, interaction: Option<&InteractionView>) -> TypedResult {
        if let Some(more) = typed.strip_suffix('\\') {
            self.draft.push_str(&more.replace("\\\n", "\n"));
            self.draft.push('\n');
            return TypedResult::Continues;
        }
        let text = std::mem::take(&mut self.draft) + &typed.replace("\\\n", "\n");
        let unsent = match interaction {
            Some(question) => match validated_answer(question, &text) {
                Ok(text) => UnsentInput::Reply {
                    interaction: question.interaction_id.clone(),
                    text,
                    key: new_idempotency_key(),
                },
                Err(reason) => return TypedResult::Invalid(reason),
            },
            None if text.trim().is_empty() => return TypedResult::Empty,
            None => UnsentInput::Message(SendMessageRequest {
                message_id: Some(new_idempotency_key()),
                text,
                on_busy: None,
            }),
        };
        self.unsent = Some(unsent);
        TypedResult::Ready
    }

    /// Sends the pending input, if the daemon is reachable.
    pub(super) fn send(&mut self, client: &DaemonClient, run: &str) -> SendResult {
        let Some(unsent) = &self.unsent else { return SendResult::NothingToSend };
        let (name, sent) = match unsent {
            UnsentInput::Reply { interaction, text, key } => {
                (interaction.clone(), client.reply_now(interaction, text, key).map(|_| ()))
            }
            UnsentInput::Message(message) => {
                (message.message_id.clone().unwrap_or_default(), client.message_now(run, message).map(|_| ()))
            }
        };
        let sent = match sent {
            Ok(()) => {
                self.sent_ids.push(name);
                SendResult::Accepted
            }
            Err(error) if error.is_transient() => return SendResult::Retry,
            // The question was answered elsewhere, which is reported.
            Err(error) => SendResult::Refused(error),
        };
        self.unsent = None;
        sent
    }

    /// Returns whether input is waiting to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Returns whether a multi-line input is unfinished.
    pub(super) fn is_multiline(&self) -> bool {
        !self.draft.is_empty()
    }

    /// Discards an unfinished multi-line input.
    pub(super) fn discard_draft(&mut self) {
        self.draft.clear();
    }

    /// Returns whether the event only reports input sent from here.
    pub(super) fn is_own_event(&self, event: &EventEnvelope) -> bool {
        let id = event.event.known().and_then(input_id);
        id.is_some_and(|id| self.sent_ids.iter().any(|own| own == id))
    }
}

/// Returns the id of the input that an event is about: an interaction for an answer, otherwise a message.
fn input_id(event: &RunEventView) -> Option<&str> {
    if let RunEventView::ReplyArrived(reply) = event {
        Some(&reply.interaction_id)
    } else if let RunEventView::DeadlinePassed(deadline) = event {
        deadline.interaction_id.as_deref()
    } else if let RunEventView::MessageArrived(message) = event {
        Some(&message.message_id)
    } else {
        None
    }
}

fn validated_answer(question: &InteractionView, typed: &str) -> Result<String, String> {
    match question::parse_answer(question, typed) {
        question::TypedAnswer::Answer(text) => Ok(text),
        question::TypedAnswer::NoOption(number) => Err(question::no_option_message(question, number)),
        question::TypedAnswer::Empty => match question::default_answer(question) {
            Some(default) => Ok(default.to_owned()),
            None => Err("nothing was typed; ctrl-d leaves the question open".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_as_many_lines_as_were_typed_and_an_empty_one_is_none() {
        let mut input = InputBuffer::default();
        assert_eq!(input.push_line(" ", None), TypedResult::Empty);
        assert_eq!(input.push_line("one\\", None), TypedResult::Continues);
        assert!(input.is_multiline());
        assert_eq!(input.push_line("two\\\nthree", None), TypedResult::Ready);
        assert!(input.has_unsent() && !input.is_multiline());
        let Some(UnsentInput::Message(message)) = input.unsent else { panic!("no message") };
        assert_eq!(message.text, "one\ntwo\nthree");
    }
}
