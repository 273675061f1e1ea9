//! Shortens the window: texts that can be read elsewhere are cut, then replaced by a pointer, then omitted.
//!
//! The steps are, each only as far as needed: replace old observations by pointers; cut the newest observations to half
//! of the room; omit old exchanges; cut observations, arguments and replies; cut messages of persons. A conversation of
//! very many small parts loses its oldest messages, and a batch of very many calls its first ones. The system prompt
//! and the tools are never shortened. The journal keeps all events.

use super::{ChatMessage, ContextMessage, ContextMessageKind, ContextWindow, OmittedCounts, excerpt};
use crate::{ask_human, event::ActionResult};

/// Percentage of the context above which the window is shortened.
const FULL_PERCENT: u64 = 80;
/// Percentage to which it is shortened. The distance to [`FULL_PERCENT`] keeps the beginning of requests stable, so that
/// servers can cache it.
const TARGET_PERCENT: u64 = 50;

/// Minimum size of a cut message, in bytes.
const MIN_CUT_MESSAGE_BYTES: usize = 400;

impl ContextWindow {
    /// Shortens the window if it is too full.
    pub fn shorten_if_full(&mut self) {
        let full = self.max_tokens / 100 * FULL_PERCENT;
        if self.tokens() > full {
            let (system, tools) = self.fixed_tokens();
            let fixed = system + tools;
            // With a long system prompt, half of the remaining room stays free.
            let target = fixed + full.saturating_sub(fixed) / 2;
            self.shorten_to(target.max(self.max_tokens / 100 * TARGET_PERCENT));
        }
    }

    /// Shortens the window because the server refused its size. Returns whether it became smaller.
    pub fn shorten_after_refusal(&mut self) -> bool {
        let before = self.message_bytes;
        let (system, tools) = self.fixed_tokens();
        let fixed = system + tools;
        self.shorten_to(fixed + self.tokens().saturating_sub(fixed) / 2);
        self.message_bytes < before
    }

    fn shorten_to(&mut self, target_tokens: u64) {
        let target_bytes = self.bytes_of(target_tokens);
        self.replace_old_with_pointers(target_bytes);
        self.cut_newest(target_bytes, target_bytes / 2);
        self.omit_exchanges(target_bytes);
        let is_user = |kind: &ContextMessageKind| matches!(kind, ContextMessageKind::User);
        let others = |kind: &ContextMessageKind| {
            matches!(
                kind,
                ContextMessageKind::AssistantText
                    | ContextMessageKind::AssistantCalls { .. }
                    | ContextMessageKind::ToolResult { .. }
            )
        };
        self.cut_kinds(target_bytes, others);
        self.cut_kinds(target_bytes, |kind| is_user(kind) || others(kind));
        self.omit_messages(target_bytes);
        self.omit_calls(target_bytes);
    }

    /// Replaces observations of earlier batches by pointers, oldest first.
    fn replace_old_with_pointers(&mut self, target_bytes: usize) {
        for piece in &mut self.messages {
            if self.message_bytes <= target_bytes {
                return;
            }
            if let ContextMessageKind::ToolResult { batch, pointer: short, .. } = &mut piece.kind
                && *batch < self.batch_count
                && let Some(short) = short.take()
            {
                self.message_bytes -= piece.json.len() - short.len();
                piece.json = short;
            }
        }
    }

    /// Cuts the observations of the newest batch until the window fits, but not below `min_bytes` bytes in total.
    fn cut_newest(&mut self, target_bytes: usize, min_bytes: usize) {
        let newest = self.batch_count;
        let is_newest = |kind: &ContextMessageKind| matches!(kind, ContextMessageKind::ToolResult { batch, .. } if *batch == newest);
        let newest_bytes: usize = self.message_sizes(is_newest).iter().sum();
        self.cut_kinds(target_bytes.max(self.message_bytes - newest_bytes + min_bytes), is_newest);
    }

    /// Cuts messages of these kinds until the window fits; the longest are cut first.
    fn cut_kinds(&mut self, target_bytes: usize, kinds: impl Fn(&ContextMessageKind) -> bool) {
        if self.message_bytes <= target_bytes {
            return;
        }
        let sizes = self.message_sizes(&kinds);
        let room = target_bytes.saturating_sub(self.message_bytes - sizes.iter().sum::<usize>());
        let max_bytes = excerpt::largest_allowed_size(sizes, room).max(MIN_CUT_MESSAGE_BYTES);
        for piece in &mut self.messages {
            if kinds(&piece.kind) && piece.json.len() > max_bytes {
                let before = piece.json.len();
                piece.cut(max_bytes, &self.state_path);
                self.message_bytes = self.message_bytes - before + piece.json.len();
            }
        }
    }

    fn message_sizes(&self, kinds: impl Fn(&ContextMessageKind) -> bool) -> Vec<usize> {
        self.messages.iter().filter(|piece| kinds(&piece.kind)).map(|piece| piece.json.len() + 1).collect()
    }

    /// Omits exchanges with tools before the newest batch, oldest first.
    fn omit_exchanges(&mut self, target_bytes: usize) {
        let mut until = None;
        let mut bytes = self.message_bytes;
        for piece in &self.messages {
            let batch = match &piece.kind {
                ContextMessageKind::AssistantCalls { batch }
                | ContextMessageKind::ToolResult { batch, .. } => *batch,
                ContextMessageKind::System
                | ContextMessageKind::User
                | ContextMessageKind::OmissionNote
                | ContextMessageKind::AssistantText => continue,
            };
            if batch >= self.batch_count || (bytes <= target_bytes && until != Some(batch)) {
                break;
            }
            until = Some(batch);
            bytes -= piece.json.len() + 1;
        }
        let Some(until) = until else { return };
        let is_old = |piece: &ContextMessage| match &piece.kind {
            ContextMessageKind::AssistantCalls { batch } | ContextMessageKind::ToolResult { batch, .. } => {
                *batch <= until
            }
            ContextMessageKind::System
            | ContextMessageKind::User
            | ContextMessageKind::AssistantText
            | ContextMessageKind::OmissionNote => false,
        };
        let calls = self
            .messages
            .iter()
            .filter(|p| is_old(p) && matches!(p.kind, ContextMessageKind::AssistantCalls { .. }))
            .count();
        self.omitted.exchanges += calls as u64;
        self.replace_with_note(is_old);
    }

    /// Omits messages of persons and notices, oldest first, except the first and the last.
    fn omit_messages(&mut self, target_bytes: usize) {
        let is_user = |piece: &ContextMessage| piece.kind == ContextMessageKind::User;
        let (first, last) = (self.messages.iter().position(is_user), self.messages.iter().rposition(is_user));
        let mut bytes = self.message_bytes;
        let mut old = vec![false; self.messages.len()];
        for (index, piece) in self.messages.iter().enumerate() {
            let is_message =
                matches!(piece.kind, ContextMessageKind::User | ContextMessageKind::AssistantText);
            if bytes > target_bytes && is_message && Some(index) != first && Some(index) != last {
                old[index] = true;
                bytes -= piece.json.len() + 1;
                self.omitted.messages += 1;
            }
        }
        let mut old = old.into_iter();
        self.replace_with_note(|_| old.next().unwrap_or(false));
    }

    /// Omits calls of the newest batch with their results, from the first on, except the last. Answers of persons are
    /// omitted last.
    fn omit_calls(&mut self, target_bytes: usize) {
        let newest = self.batch_count;
        let is_calls =
            |piece: &ContextMessage| piece.kind == ContextMessageKind::AssistantCalls { batch: newest };
        let Some(at) = self.messages.iter().position(is_calls) else { return };
        if self.message_bytes <= target_bytes {
            return;
        }
        let mut calls = excerpt::parse_calls(&self.messages[at].json);
        let results = self
            .messages
            .iter()
            .filter(|p| matches!(p.kind, ContextMessageKind::ToolResult { batch, .. } if batch == newest));
        let results: Vec<usize> = results.map(|piece| piece.json.len() + 1).collect();
        let (mut bytes, mut remaining_calls) = (self.message_bytes, calls.len());
        let mut old = vec![false; calls.len()];
        for is_person in [false, true] {
            for (index, call) in calls.iter().enumerate() {
                let of_person = call["function"]["name"] == ask_human::TOOL_NAME;
                if bytes > target_bytes && remaining_calls > 1 && of_person == is_person {
                    old[index] = true;
                    remaining_calls -= 1;
                    bytes -= call.to_string().len() + 1 + results.get(index).unwrap_or(&0);
                }
            }
        }
        self.omitted.calls += (calls.len() - remaining_calls) as u64;
        let mut each = old.iter();
        calls.retain(|_| !each.next().unwrap_or(&false));
        self.messages[at].json = excerpt::with_calls(&self.messages[at].json, calls);
        let mut each = old.into_iter();
        self.replace_with_note(|piece| {
            matches!(piece.kind, ContextMessageKind::ToolResult { batch, .. } if batch == newest)
                && each.next().unwrap_or(false)
        });
    }

    /// Removes messages and inserts a note at the position of the first.
    fn replace_with_note(&mut self, mut is_old: impl FnMut(&ContextMessage) -> bool) {
        let mut note_index = None;
        let mut kept = Vec::with_capacity(self.messages.len());
        for piece in self.messages.drain(..) {
            let is_old = is_old(&piece);
            if is_old || piece.kind == ContextMessageKind::OmissionNote {
                note_index = note_index.or(Some(kept.len()));
            } else {
                kept.push(piece);
            }
        }
        self.messages = kept;
        if let Some(note_index) = note_index {
            let json = ChatMessage::User(self.omitted.note_text(&self.state_path)).to_json();
            // A note between a call and its results would break the conversation.
            let between = self.messages[..note_index]
                .iter()
                .rposition(|piece| !matches!(piece.kind, ContextMessageKind::ToolResult { .. }));
            let note_index = match between {
                Some(at) if matches!(self.messages[at].kind, ContextMessageKind::AssistantCalls { .. }) => at,
                Some(_) | None => note_index,
            };
            self.messages.insert(note_index, ContextMessage { json, kind: ContextMessageKind::OmissionNote });
        }
        self.message_bytes = self.messages.iter().map(|piece| piece.json.len() + 1).sum();
    }
}

impl OmittedCounts {
    fn note_text(&self, state: &str) -> String {
        let Self { exchanges, messages, calls } = *self;
        let counts = [
            (exchanges, "earlier exchanges with tools"),
            (messages, "earlier messages"),
            (calls, "calls that were made together with others, and their results"),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, kind)| format!("{count} {kind}"))
            .collect();
        format!(
            "{} {} are left out here to make room; {state}/journal.jsonl has them whole.",
            super::NOTICE_PREFIX,
            counts.join(", ")
        )
    }
}

impl ContextMessage {
    /// Cuts the message to about `max_bytes` bytes, and adds the path of the complete text.
    fn cut(&mut self, max_bytes: usize, state: &str) {
        let journal = format!("{state}/journal.jsonl");
        self.json = match &mut self.kind {
            ContextMessageKind::ToolResult { pointer: Some(short), .. }
                if max_bytes <= MIN_CUT_MESSAGE_BYTES =>
            {
                short.clone()
            }
            ContextMessageKind::ToolResult { output_path: place, output_bytes: size, .. } => {
                excerpt::cut_content(&self.json, max_bytes, place, Some(*size))
            }
            ContextMessageKind::AssistantCalls { .. } => {
                excerpt::omit_arguments(&self.json, max_bytes, &journal)
            }
            ContextMessageKind::System
            | ContextMessageKind::User
            | ContextMessageKind::OmissionNote
            | ContextMessageKind::AssistantText => {
                excerpt::cut_content(&self.json, max_bytes, &journal, None)
            }
        };
    }
}

/// The text that replaces an old observation.
pub(super) fn pointer(result: &ActionResult, state: &str) -> Option<String> {
    let output_path = result.execution_ref.as_deref()?;
    let end = result.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    let bytes = result.observation_content.len();
    Some(format!("[older output left out: {bytes} bytes{end}; all of it is in {state}/{output_path}]"))
}
