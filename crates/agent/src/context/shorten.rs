//! Making room: old observations become pointers to where they lie, and then old exchanges are left out.
//!
//! What persons said is never left out, nor is the newest exchange, and the journal keeps everything.

use super::{Kind, Message, Piece, Window};
use crate::event::ActionResult;

/// A window fuller than this (in percent) is shortened …
const FULL: u64 = 80;
/// … until it is as full as this. Far enough apart that a request is rarely different at its head from the one before,
/// which servers reward.
const EASY: u64 = 50;

impl Window {
    /// Shortens the window if it has grown too full.
    pub fn fit(&mut self) {
        if self.tokens() > self.most / 100 * FULL {
            self.shorten_to(self.most / 100 * EASY);
        }
    }

    /// Shortens the window because the server would not take it. Whether anything was left to shorten.
    pub fn squeeze(&mut self) -> bool {
        let before = self.tokens();
        self.shorten_to(before / 2);
        self.tokens() < before
    }

    fn shorten_to(&mut self, wanted: u64) {
        for index in 0..self.pieces.len() {
            if self.tokens() <= wanted {
                return;
            }
            let piece = &mut self.pieces[index];
            if let Kind::Result { batch, short } = &mut piece.kind
                && *batch < self.batches
                && let Some(short) = short.take()
            {
                self.bytes -= piece.json.len() - short.len();
                piece.json = short;
            }
        }
        self.leave_out(wanted);
    }

    fn leave_out(&mut self, wanted: u64) {
        let mut until = None;
        let mut bytes = self.bytes;
        let saved = |bytes: usize| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "an estimate of something that is far smaller than 2^53"
            )]
            let tokens = ((bytes + self.overhead) as f64 * self.rate) as u64;
            tokens
        };
        for piece in &self.pieces {
            let batch = match &piece.kind {
                Kind::Calls { batch } | Kind::Result { batch, .. } => *batch,
                Kind::Said | Kind::Gap | Kind::Spoken => continue,
            };
            if batch >= self.batches || (saved(bytes) <= wanted && until != Some(batch)) {
                break;
            }
            until = Some(batch);
            bytes -= piece.json.len() + 1;
        }
        let Some(until) = until else { return };
        let is_old = |piece: &Piece| match &piece.kind {
            Kind::Calls { batch } | Kind::Result { batch, .. } => *batch <= until,
            Kind::Gap => true,
            Kind::Said | Kind::Spoken => false,
        };
        let place = self.pieces.iter().position(is_old).unwrap_or(0);
        let calls = self.pieces.iter().filter(|p| is_old(p) && matches!(p.kind, Kind::Calls { .. })).count();
        self.left_out += calls as u64;
        self.pieces.retain(|piece| !is_old(piece));
        let text = format!(
            "{} {} earlier exchanges with tools are left out here to make room; {}/journal.jsonl has them whole.",
            super::NOTICE,
            self.left_out,
            self.state
        );
        let json = Message::User(text).json();
        self.pieces.insert(place, Piece { json, kind: Kind::Gap });
        self.bytes = self.pieces.iter().map(|piece| piece.json.len() + 1).sum();
    }
}

/// What stands in place of an old observation.
pub(super) fn pointer(result: &ActionResult, state: &str) -> Option<String> {
    let place = result.execution_ref.as_deref()?;
    let end = result.exit_code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    let bytes = result.observation_content.len();
    Some(format!("[older output left out: {bytes} bytes{end}; all of it is in {state}/{place}]"))
}
