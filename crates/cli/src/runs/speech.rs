//! What the person says back while a run is followed: typed, understood as an answer or a message, and sent.
//!
//! Everything goes under a key of its own, so that it can be sent again after a break and still counts once. What is
//! typed where is not known here.

use abide_wire::{event::EventEnvelope, interaction::InteractionView, message::SendMessageRequest};

use super::{key, question};
use crate::{client::DaemonClient, trouble::CliError};

/// What was typed, from the first line to its arrival.
#[derive(Debug, Default)]
pub(super) struct InputBuffer {
    /// Lines of something that goes on.
    draft: String,
    /// What has not reached the daemon yet.
    unsent: Option<UnsentInput>,
    /// The names of what was sent from here, which need not be told.
    own: Vec<String>,
}

#[derive(Clone, Debug)]
enum UnsentInput {
    Reply { interaction: String, text: String, key: String },
    Message(SendMessageRequest),
}

/// What became of a typed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TypedResult {
    /// It goes on in the next one.
    More,
    /// It says nothing.
    Nothing,
    /// It is to be sent.
    Said,
    /// It cannot be meant, because of this.
    Wrong(String),
}

/// What became of what was to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    /// There was nothing.
    Nothing,
    /// It arrived.
    Arrived,
    /// The daemon cannot take it now.
    Later,
    /// The daemon will not take it.
    Refused(CliError),
}

impl InputBuffer {
    /// Takes a line, or several that were pasted, as the answer to a question or as a message.
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

    /// Sends what was typed, if the daemon is there to take it.
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
            // Then the question has somebody else's answer, and that is news.
            Err(trouble) => SendResult::Refused(trouble),
        };
        self.unsent = None;
        sent
    }

    /// Whether something waits to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether lines were typed that go on.
    pub(super) fn goes_on(&self) -> bool {
        !self.draft.is_empty()
    }

    /// Forgets lines that are no longer wanted.
    pub(super) fn forget_draft(&mut self) {
        self.draft.clear();
    }

    /// Whether the event only tells what was said from here.
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
