//! Shortens the window: texts that can be read elsewhere are cut, then replaced by a pointer, then omitted.
//!
//! The steps are, each only as far as needed: replace old observations by pointers; cut the newest observations to half
//! of the room; omit old exchanges; cut observations, arguments and replies; cut messages of persons. A conversation of
//! very many small parts loses its oldest messages, and a batch of very many calls its first ones. The system prompt
//! and the tools are never shortened. The journal keeps all events.

use super::{ChatMessage, ContextMessage, ContextMessageKind, ContextWindow, OmittedCounts, excerpt};
use crate::{event::ActionResult, human};

/// Percentage of the context above which the window is shortened.
const FULL: u64 = 80;
/// Percentage to which it is shortened. The distance to `FULL` keeps the beginning of requests stable, so that servers
/// can cache it.
const EASY: u64 = 50;

/// Minimum size of a cut message, in bytes.
const SHORTEST: usize = 400;

impl ContextWindow {
    /// Shortens the window if it is too full.
    pub fn fit(&mut self) {
        let full = self.most / 100 * FULL;
        if self.tokens() > full {
            let (system, tools) = self.fixed();
            let fixed = system + tools;
            // With a long system prompt, half of the remaining room stays free.
            let easy = fixed + full.saturating_sub(fixed) / 2;
            self.shorten_to(easy.max(self.most / 100 * EASY));
        }
    }

    /// Shortens the window because the server refused its size. Returns whether it became smaller.
    pub fn squeeze(&mut self) -> bool {
        let before = self.bytes;
        let (system, tools) = self.fixed();
        let fixed = system + tools;
        self.shorten_to(fixed + self.tokens().saturating_sub(fixed) / 2);
        self.bytes < before
    }

    fn shorten_to(&mut self, wanted: u64) {
        let goal = self.bytes_of(wanted);
        self.point_at_old(goal);
        self.cut_newest(goal, goal / 2);
        self.leave_out_exchanges(goal);
        let said = |kind: &ContextMessageKind| matches!(kind, ContextMessageKind::Said);
        let others = |kind: &ContextMessageKind| {
            matches!(
                kind,
                ContextMessageKind::Spoken
                    | ContextMessageKind::Calls { .. }
                    | ContextMessageKind::Result { .. }
            )
        };
        self.cut(goal, others);
        self.cut(goal, |kind| said(kind) || others(kind));
        self.leave_out_messages(goal);
        self.leave_out_calls(goal);
    }

    /// Replaces observations of earlier batches by pointers, oldest first.
    fn point_at_old(&mut self, goal: usize) {
        for piece in &mut self.pieces {
            if self.bytes <= goal {
                return;
            }
            if let ContextMessageKind::Result { batch, short, .. } = &mut piece.kind
                && *batch < self.batches
                && let Some(short) = short.take()
            {
                self.bytes -= piece.json.len() - short.len();
                piece.json = short;
            }
        }
    }

    /// Cuts the observations of the newest batch until the window fits, but not below `least` bytes in total.
    fn cut_newest(&mut self, goal: usize, least: usize) {
        let newest = self.batches;
        let is_newest = |kind: &ContextMessageKind| matches!(kind, ContextMessageKind::Result { batch, .. } if *batch == newest);
        let theirs: usize = self.sizes(is_newest).iter().sum();
        self.cut(goal.max(self.bytes - theirs + least), is_newest);
    }

    /// Cuts messages of these kinds until the window fits; the longest are cut first.
    fn cut(&mut self, goal: usize, kinds: impl Fn(&ContextMessageKind) -> bool) {
        if self.bytes <= goal {
            return;
        }
        let sizes = self.sizes(&kinds);
        let room = goal.saturating_sub(self.bytes - sizes.iter().sum::<usize>());
        let most = excerpt::share(sizes, room).max(SHORTEST);
        for piece in &mut self.pieces {
            if kinds(&piece.kind) && piece.json.len() > most {
                let before = piece.json.len();
                piece.cut(most, &self.state);
                self.bytes = self.bytes - before + piece.json.len();
            }
        }
    }

    fn sizes(&self, kinds: impl Fn(&ContextMessageKind) -> bool) -> Vec<usize> {
        self.pieces.iter().filter(|piece| kinds(&piece.kind)).map(|piece| piece.json.len() + 1).collect()
    }

    /// Omits exchanges with tools before the newest batch, oldest first.
    fn leave_out_exchanges(&mut self, goal: usize) {
        let mut until = None;
        let mut bytes = self.bytes;
        for piece in &self.pieces {
            let batch = match &piece.kind {
                ContextMessageKind::Calls { batch } | ContextMessageKind::Result { batch, .. } => *batch,
                ContextMessageKind::System
                | ContextMessageKind::Said
                | ContextMessageKind::Gap
                | ContextMessageKind::Spoken => continue,
            };
            if batch >= self.batches || (bytes <= goal && until != Some(batch)) {
                break;
            }
            until = Some(batch);
            bytes -= piece.json.len() + 1;
        }
        let Some(until) = until else { return };
        let is_old = |piece: &ContextMessage| match &piece.kind {
            ContextMessageKind::Calls { batch } | ContextMessageKind::Result { batch, .. } => *batch <= until,
            ContextMessageKind::System
            | ContextMessageKind::Said
            | ContextMessageKind::Spoken
            | ContextMessageKind::Gap => false,
        };
        let calls = self
            .pieces
            .iter()
            .filter(|p| is_old(p) && matches!(p.kind, ContextMessageKind::Calls { .. }))
            .count();
        self.left_out.exchanges += calls as u64;
        self.remove(is_old);
    }

    /// Omits messages of persons and notices, oldest first, except the first and the last.
    fn leave_out_messages(&mut self, goal: usize) {
        let said = |piece: &ContextMessage| piece.kind == ContextMessageKind::Said;
        let (first, last) = (self.pieces.iter().position(said), self.pieces.iter().rposition(said));
        let mut bytes = self.bytes;
        let mut old = vec![false; self.pieces.len()];
        for (index, piece) in self.pieces.iter().enumerate() {
            let is_message = matches!(piece.kind, ContextMessageKind::Said | ContextMessageKind::Spoken);
            if bytes > goal && is_message && Some(index) != first && Some(index) != last {
                old[index] = true;
                bytes -= piece.json.len() + 1;
                self.left_out.messages += 1;
            }
        }
        let mut old = old.into_iter();
        self.remove(|_| old.next().unwrap_or(false));
    }

    /// Omits calls of the newest batch with their results, from the first on, except the last. Answers of persons are
    /// omitted last.
    fn leave_out_calls(&mut self, goal: usize) {
        let newest = self.batches;
        let is_calls = |piece: &ContextMessage| piece.kind == ContextMessageKind::Calls { batch: newest };
        let Some(at) = self.pieces.iter().position(is_calls) else { return };
        if self.bytes <= goal {
            return;
        }
        let mut calls = excerpt::calls(&self.pieces[at].json);
        let results = self
            .pieces
            .iter()
            .filter(|p| matches!(p.kind, ContextMessageKind::Result { batch, .. } if batch == newest));
        let results: Vec<usize> = results.map(|piece| piece.json.len() + 1).collect();
        let (mut bytes, mut left) = (self.bytes, calls.len());
        let mut old = vec![false; calls.len()];
        for is_person in [false, true] {
            for (index, call) in calls.iter().enumerate() {
                let of_person = call["function"]["name"] == human::TOOL;
                if bytes > goal && left > 1 && of_person == is_person {
                    old[index] = true;
                    left -= 1;
                    bytes -= call.to_string().len() + 1 + results.get(index).unwrap_or(&0);
                }
            }
        }
        self.left_out.calls += (calls.len() - left) as u64;
        let mut each = old.iter();
        calls.retain(|_| !each.next().unwrap_or(&false));
        self.pieces[at].json = excerpt::with_calls(&self.pieces[at].json, calls);
        let mut each = old.into_iter();
        self.remove(|piece| {
            matches!(piece.kind, ContextMessageKind::Result { batch, .. } if batch == newest)
                && each.next().unwrap_or(false)
        });
    }

    /// Removes messages and inserts a note at the position of the first.
    fn remove(&mut self, mut is_old: impl FnMut(&ContextMessage) -> bool) {
        let mut place = None;
        let mut kept = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.drain(..) {
            let is_old = is_old(&piece);
            if is_old || piece.kind == ContextMessageKind::Gap {
                place = place.or(Some(kept.len()));
            } else {
                kept.push(piece);
            }
        }
        self.pieces = kept;
        if let Some(place) = place {
            let json = ChatMessage::User(self.left_out.told(&self.state)).json();
            // A note between a call and its results would break the conversation.
            let between = self.pieces[..place]
                .iter()
                .rposition(|piece| !matches!(piece.kind, ContextMessageKind::Result { .. }));
            let place = match between {
                Some(at) if matches!(self.pieces[at].kind, ContextMessageKind::Calls { .. }) => at,
                Some(_) | None => place,
            };
            self.pieces.insert(place, ContextMessage { json, kind: ContextMessageKind::Gap });
        }
        self.bytes = self.pieces.iter().map(|piece| piece.json.len() + 1).sum();
    }
}

impl OmittedCounts {
    fn told(&self, state: &str) -> String {
        let Self { exchanges, messages, calls } = *self;
        let told = [
            (exchanges, "earlier exchanges with tools"),
            (messages, "earlier messages"),
            (calls, "calls that were made together with others, and their results"),
        ];
        let told: Vec<String> = told
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        format!(
            "{} {} are left out here to make room; {state}/journal.jsonl has them whole.",
            super::NOTICE,
            told.join(", ")
        )
    }
}

impl ContextMessage {
    /// Cuts the message to about `most` bytes, and adds the path of the complete text.
    fn cut(&mut self, most: usize, state: &str) {
        let journal = format!("{state}/journal.jsonl");
        self.json = match &mut self.kind {
            ContextMessageKind::Result { short: Some(short), .. } if most <= SHORTEST => short.clone(),
            ContextMessageKind::Result { place, size, .. } => {
                excerpt::content(&self.json, most, place, Some(*size))
            }
            ContextMessageKind::Calls { .. } => excerpt::arguments(&self.json, most, &journal),
            ContextMessageKind::System
            | ContextMessageKind::Said
            | ContextMessageKind::Gap
            | ContextMessageKind::Spoken => excerpt::content(&self.json, most, &journal, None),
        };
    }
}

/// The text that replaces an old observation.
pub(super) fn pointer(result: &ActionResult, state: &str) -> Option<String> {
    let place = result.execution_ref.as_deref()?;
    let end = result.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    let bytes = result.observation_content.len();
    Some(format!("[older output left out: {bytes} bytes{end}; all of it is in {state}/{place}]"))
}
