//! Something is said to the child, and whoever said it is told when the child has dealt with it.
//!
//! Known where the kernel tells: the input is empty and a process of the tree is blocked reading it. Where it does not
//! tell, silence is all there is, and the answer says that it was guessed. Shells that take commands need none of this.

use std::path::PathBuf;

use super::Holder;
use crate::child::Hold;
use crate::clock::ticks;
use crate::lane::name_of;
use crate::procs;
use crate::protocol::{Exit, News, Refusal, Rest, Say, Settled, Stream};
use crate::reading::{Found, Reader, look};

/// Somebody who waits for the child to read again.
#[derive(Debug)]
pub(super) struct Settling {
    client: (u64, u64),
    input: Option<PathBuf>,
    prompt: Vec<u8>,
    quiet: u64,
    began: u64,
    give_up_at: u64,
    next_look: u64,
    /// When something was printed last, or the child was last seen at work.
    stirred_at: u64,
    /// The end of what each stream printed since.
    ends: [Vec<u8>; 2],
    /// Who read a terminal before something was said: as long as it has not been woken, it has not heard it.
    deaf: Option<Reader>,
    /// Who was seen waiting last.
    seen: Option<Reader>,
}

/// How long a reader has to be seen unchanged where input or output takes a way of its own through the kernel, or where
/// it waits for other things as well, in microseconds.
const STEADY: u64 = 15_000;
/// The bounds between two looks, in microseconds.
const SOONEST: u64 = 1_000;
const LATEST: u64 = 50_000;
/// The longest prompt that is recognised.
const MOST_PROMPT: usize = 256;

impl Settling {
    pub(super) fn wakes_at(&self) -> u64 {
        self.next_look.min(self.give_up_at)
    }

    /// Something was printed.
    pub(super) fn heard(&mut self, stream: Stream, bytes: &[u8]) {
        let now = ticks();
        self.stirred_at = now;
        self.next_look = self.next_look.min(now + SOONEST);
        let end = &mut self.ends[stream.index()];
        end.extend_from_slice(bytes.get(bytes.len().saturating_sub(MOST_PROMPT)..).unwrap_or_default());
        let surplus = end.len().saturating_sub(MOST_PROMPT);
        end.drain(..surplus);
    }

    fn prompted(&self) -> bool {
        !self.prompt.is_empty() && self.ends.iter().any(|end| end.ends_with(&self.prompt))
    }

    /// What the child does, if it is sure enough by now.
    fn judge(&mut self, found: Found, on_terminal: bool, now: u64) -> Option<Rest> {
        let reader = match found {
            Found::Reads(reader) | Found::Waits(reader) => Some(reader),
            Found::Elsewhere | Found::Untold => None,
        };
        if found == Found::Elsewhere || self.seen != reader {
            self.stirred_at = now;
        }
        self.seen = reader;
        let silent_for = now.saturating_sub(self.stirred_at);
        let has_heard = reader.is_some() && reader != self.deaf;
        match found {
            Found::Reads(_) if !on_terminal => Some(Rest::Reads),
            Found::Reads(_) if has_heard && silent_for >= STEADY => Some(Rest::Reads),
            Found::Waits(_) if has_heard && silent_for >= STEADY && self.prompted() => Some(Rest::Prompts),
            Found::Waits(_) if silent_for >= self.quiet => Some(Rest::Waits),
            Found::Reads(_) | Found::Untold if silent_for >= self.quiet => Some(Rest::Silent),
            Found::Reads(_) | Found::Waits(_) | Found::Untold | Found::Elsewhere => None,
        }
    }
}

impl Holder {
    /// Passes text on and begins to wait. Who waited before is told that somebody else does now.
    pub(super) fn say(&mut self, say: Say, client: (u64, u64)) -> Result<(), Refusal> {
        if self.prompter.is_some() {
            return Err(Refusal::Unsupported("this shell takes commands".to_owned()));
        }
        if self.exit.is_some() || self.ending.is_some() {
            return Err(Refusal::Ended);
        }
        let input = self.input_name();
        let on_terminal = matches!(self.hold, Hold::Pty(_));
        let deaf = match &input {
            Some(input) if on_terminal && !say.bytes.is_empty() => match look(self.own.pid, input) {
                Found::Reads(reader) | Found::Waits(reader) => Some(reader),
                Found::Elsewhere | Found::Untold => None,
            },
            Some(_) | None => None,
        };
        if !say.bytes.is_empty() {
            self.input(&say.bytes, false)?;
        }
        if let Some(earlier) = self.settling.take() {
            self.clients.tell(earlier.client, News::Refused(Refusal::Busy));
        }
        let now = ticks();
        self.settling = Some(Settling {
            client,
            input,
            prompt: say.prompt,
            quiet: say.quiet_ms.saturating_mul(1_000),
            began: now,
            give_up_at: now.saturating_add(say.timeout_ms.saturating_mul(1_000)),
            next_look: now + SOONEST,
            stirred_at: now,
            ends: [Vec::new(), Vec::new()],
            deaf,
            seen: None,
        });
        Ok(())
    }

    pub(super) fn go_on_settling(&mut self, now: u64) {
        let on_terminal = matches!(self.hold, Hold::Pty(_));
        let unread = self.unread_input();
        let root = self.own.pid;
        let Some(settling) = self.settling.as_mut().filter(|settling| now >= settling.wakes_at()) else {
            return;
        };
        let found = match &settling.input {
            // What is not read yet says all: nobody can be waiting for it.
            _ if unread => Found::Elsewhere,
            Some(input) => look(root, input),
            None => Found::Untold,
        };
        let rest = match settling.judge(found, on_terminal, now) {
            Some(rest) => rest,
            None if now >= settling.give_up_at => Rest::Busy,
            None => {
                let waited = now.saturating_sub(settling.began);
                settling.next_look = now + (waited / 8).clamp(SOONEST, LATEST);
                return;
            }
        };
        self.settled(rest, None);
    }

    /// The child is gone: whoever waits for it need not any longer.
    pub(super) fn settle_ended(&mut self, exit: &Exit) {
        self.settled(Rest::Ended, Some(exit.clone()));
    }

    fn settled(&mut self, rest: Rest, exit: Option<Exit>) {
        let Some(Settling { client, .. }) = self.settling.take() else { return };
        // What it printed before it went to read is in the pipes by now.
        self.drain_all();
        self.drain_terminal();
        self.pump();
        let printed = self.spool.printed(0);
        self.clients.tell(client, News::Settled(Settled { rest, printed, exit }));
    }

    /// Whether something that was said has not been taken yet.
    fn unread_input(&self) -> bool {
        match &self.hold {
            Hold::Pipes(Some(input)) => {
                self.stdin.waits() || rustix::io::ioctl_fionread(input).is_ok_and(|unread| unread > 0)
            }
            Hold::Pipes(None) | Hold::Shell | Hold::Pty(_) => false,
        }
    }

    fn input_name(&self) -> Option<PathBuf> {
        match &self.hold {
            Hold::Pipes(Some(input)) => name_of(input),
            Hold::Pty(_) => procs::descriptor(self.child.pid, 0),
            Hold::Pipes(None) | Hold::Shell => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: Reader = Reader { thread: 7, sleeps: 3 };
    const WOKEN: Reader = Reader { thread: 7, sleeps: 4 };

    fn settling(prompt: &str, deaf: Option<Reader>) -> Settling {
        Settling {
            client: (0, 0),
            input: None,
            prompt: prompt.as_bytes().to_vec(),
            quiet: 1_000_000,
            began: 0,
            give_up_at: u64::MAX,
            next_look: 0,
            stirred_at: 0,
            ends: [Vec::new(), Vec::new()],
            deaf,
            seen: None,
        }
    }

    /// What is judged, and when in milliseconds, if the same is found every ten.
    fn judged(mut settling: Settling, found: Found, on_terminal: bool) -> Option<(u64, Rest)> {
        (1..500).find_map(|ten| Some((ten * 10, settling.judge(found, on_terminal, ten * 10_000)?)))
    }

    #[test]
    fn a_reader_of_a_pipe_is_known_at_once_and_one_of_a_terminal_when_it_was_woken_and_is_steady() {
        assert_eq!(judged(settling("", None), Found::Reads(READER), false), Some((10, Rest::Reads)));
        assert_eq!(judged(settling("", Some(READER)), Found::Reads(WOKEN), true), Some((30, Rest::Reads)));
        // It has not been woken, so it has not heard: what it does by now is a guess.
        assert_eq!(
            judged(settling("", Some(READER)), Found::Reads(READER), true),
            Some((1010, Rest::Silent))
        );
    }

    #[test]
    fn who_waits_for_several_things_is_known_by_the_prompt_and_guessed_about_by_silence() {
        let mut prompted = settling("> ", None);
        prompted.ends[0] = b"42\n> ".to_vec();
        assert_eq!(judged(prompted, Found::Waits(READER), false), Some((30, Rest::Prompts)));
        assert_eq!(judged(settling("> ", None), Found::Waits(READER), false), Some((1010, Rest::Waits)));
    }

    #[test]
    fn who_is_seen_at_work_is_never_guessed_about_and_who_cannot_be_seen_always() {
        assert_eq!(judged(settling("", None), Found::Elsewhere, false), None);
        assert_eq!(judged(settling("", None), Found::Untold, false), Some((1000, Rest::Silent)));
    }
}
