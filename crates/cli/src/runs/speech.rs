//! User input while a run is followed: parsed as an answer or a message, and sent.
//!
//! Each input has an idempotency key, so that it can be sent again after a lost connection. Reading the terminal is not
//! part of this module.

use abide_wire::{event::EventEnvelope, interaction::InteractionView, message::SendMessageRequest};

use super::{key, question};
use crate::{client::DaemonClient, trouble::CliError};

/// Input from the first typed line until the daemon has accepted it.
#[derive(Debug, Default)]
pub(super) struct InputBuffer {
    /// Lines of an unfinished multi-line input.
    draft: String,
    /// Input that the daemon has not accepted yet.
    unsent: Option<UnsentInput>,
    /// Ids of input sent from here, whose events are not printed.
    own: Vec<String>,
}

#[derive(Clone, Debug)]
enum UnsentInput {
    Reply { interaction: String, text: String, key: String },
    Message(SendMessageRequest),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum TypedResult {
    /// The input continues in the next line.
    More,
    /// The line is empty.
    Nothing,
    /// The input is complete and ready to send.
    Said,
    /// The input is invalid, for this reason.
    Wrong(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    Nothing,
    Arrived,
    /// The daemon cannot accept it now.
    Later,
    /// The daemon rejected it.
    Refused(CliError),
}

impl InputBuffer {
    /// Takes a line, or several pasted lines, as the answer to a question or as a message.
    pub(super) fn typed(&mut self, typed: &str, asked: Option<&InteractionView>) -> TypedResult {
        if let Some(more) = typed.strip_suffix('\\') {
            self.draft.push_str(&more.replace("\\\n", "\n"));
            self.draft.push('\n');
            return TypedResult::More;
        }
        let text = std::mem::take(&mut self.draft) + &typed.replace("\\\n", "\n");
        let unsent = match asked {
            Some(question) => match answer(question, &text) {
                Ok(text) => {
                    UnsentInput::Reply { interaction: question.interaction_id.clone(), text, key: key() }
                }
                Err(why) => return TypedResult::Wrong(why),
            },
            None if text.trim().is_empty() => return TypedResult::Nothing,
            None => UnsentInput::Message(SendMessageRequest { message_id: Some(key()), text, on_busy: None }),
        };
        self.unsent = Some(unsent);
        TypedResult::Said
    }

    /// Sends the pending input, if the daemon is reachable.
    pub(super) fn send(&mut self, client: &DaemonClient, run: &str) -> SendResult {
        let Some(unsent) = &self.unsent else { return SendResult::Nothing };
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
                self.own.push(name);
                SendResult::Arrived
            }
            Err(trouble) if trouble.is_passing() => return SendResult::Later,
            // The question was answered elsewhere, which is reported.
            Err(trouble) => SendResult::Refused(trouble),
        };
        self.unsent = None;
        sent
    }

    /// Returns whether input is waiting to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        self.unsent.is_some()
    }

    /// Returns whether a multi-line input is unfinished.
    pub(super) fn goes_on(&self) -> bool {
        !self.draft.is_empty()
    }

    /// Discards an unfinished multi-line input.
    pub(super) fn forget_draft(&mut self) {
        self.draft.clear();
    }

    /// Returns whether the event only reports input sent from here.
    pub(super) fn is_own(&self, event: &EventEnvelope) -> bool {
        let name = event.data.get("interaction_id").or_else(|| event.data.get("message_id"));
        let name = name.and_then(|name| name.as_str());
        name.is_some_and(|name| self.own.iter().any(|own| own == name))
    }
}

fn answer(question: &InteractionView, typed: &str) -> Result<String, String> {
    match question::meant(question, typed) {
        question::TypedAnswer::Answer(text) => Ok(text),
        question::TypedAnswer::NoOption(number) => Err(question::no_option(question, number)),
        question::TypedAnswer::Nothing => match question::default(question) {
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
        let mut speech = InputBuffer::default();
        assert_eq!(speech.typed(" ", None), TypedResult::Nothing);
        assert_eq!(speech.typed("one\\", None), TypedResult::More);
        assert!(speech.goes_on());
        assert_eq!(speech.typed("two\\\nthree", None), TypedResult::Said);
        assert!(speech.is_waiting() && !speech.goes_on());
        let Some(UnsentInput::Message(message)) = speech.unsent else { panic!("no message") };
        assert_eq!(message.text, "one\ntwo\nthree");
    }
}
