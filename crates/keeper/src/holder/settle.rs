//! Writes input to the child and reports when the child has processed it.
//!
//! The kernel shows it where possible: the input is empty and a process of the tree is blocked in reading it. Otherwise
//! the keeper waits for a period without output, and the response states that the result is a guess. Shells that take
//! commands do not need this.

use std::path::PathBuf;

use super::ChildSupervisor;
use crate::child::ChildIo;
use crate::clock::ticks;
use crate::lane::name_of;
use crate::procs;
use crate::protocol::{
    ChildExit, IdleState, InputConsumed, KeeperRefusal, KeeperResponse, OutputStream, WriteAndWait,
};
use crate::reading::{BlockedReader, InputReadState, look};

/// A client that waits until the child reads its input again.
#[derive(Debug)]
pub(super) struct InputWait {
    client: (u64, u64),
    input: Option<PathBuf>,
    prompt: Vec<u8>,
    quiet: u64,
    began: u64,
    give_up_at: u64,
    next_look: u64,
    /// Time of the last output, or of the last observation of a working child.
    stirred_at: u64,
    /// The last bytes that each stream printed since the write.
    ends: [Vec<u8>; 2],
    /// The reader observed before the input was written. If it is unchanged, the input has not been consumed.
    deaf: Option<BlockedReader>,
    /// The blocked reader of the last check.
    seen: Option<BlockedReader>,
}

/// How long a reader must stay unchanged, in microseconds. It applies to terminals, whose data passes a kernel queue,
/// and to readers that also wait for other events.
const STEADY: u64 = 15_000;
/// Minimum and maximum interval of checks, in microseconds.
const SOONEST: u64 = 1_000;
const LATEST: u64 = 50_000;
/// Maximum length of a recognised prompt, in bytes.
const MOST_PROMPT: usize = 256;

impl InputWait {
    pub(super) fn wakes_at(&self) -> u64 {
        self.next_look.min(self.give_up_at)
    }

    /// Records output of the child.
    pub(super) fn heard(&mut self, stream: OutputStream, bytes: &[u8]) {
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

    /// Returns the state of the child once it is certain enough.
    fn judge(&mut self, found: InputReadState, on_terminal: bool, now: u64) -> Option<IdleState> {
        let reader = match found {
            InputReadState::Reads(reader) | InputReadState::Waits(reader) => Some(reader),
            InputReadState::Elsewhere | InputReadState::Untold => None,
        };
        if found == InputReadState::Elsewhere || self.seen != reader {
            self.stirred_at = now;
        }
        self.seen = reader;
        let silent_for = now.saturating_sub(self.stirred_at);
        let has_heard = reader.is_some() && reader != self.deaf;
        match found {
            InputReadState::Reads(_) if !on_terminal => Some(IdleState::Reads),
            InputReadState::Reads(_) if has_heard && silent_for >= STEADY => Some(IdleState::Reads),
            InputReadState::Waits(_) if has_heard && silent_for >= STEADY && self.prompted() => {
                Some(IdleState::Prompts)
            }
            InputReadState::Waits(_) if silent_for >= self.quiet => Some(IdleState::Waits),
            InputReadState::Reads(_) | InputReadState::Untold if silent_for >= self.quiet => {
                Some(IdleState::Silent)
            }
            InputReadState::Reads(_)
            | InputReadState::Waits(_)
            | InputReadState::Untold
            | InputReadState::Elsewhere => None,
        }
    }
}

impl ChildSupervisor {
    /// Writes input and starts to wait. An earlier waiting client is notified that it was replaced.
    pub(super) fn say(&mut self, say: WriteAndWait, client: (u64, u64)) -> Result<(), KeeperRefusal> {
        if self.prompter.is_some() {
            return Err(KeeperRefusal::Unsupported("this shell takes commands".to_owned()));
        }
        if self.exit.is_some() || self.ending.is_some() {
            return Err(KeeperRefusal::Ended);
        }
        let input = self.input_name();
        let on_terminal = matches!(self.hold, ChildIo::Pty(_));
        let deaf = match &input {
            Some(input) if on_terminal && !say.bytes.is_empty() => match look(self.own.pid, input) {
                InputReadState::Reads(reader) | InputReadState::Waits(reader) => Some(reader),
                InputReadState::Elsewhere | InputReadState::Untold => None,
            },
            Some(_) | None => None,
        };
        if !say.bytes.is_empty() {
            self.input(&say.bytes, false)?;
        }
        if let Some(earlier) = self.settling.take() {
            self.clients.tell(earlier.client, KeeperResponse::Refused(KeeperRefusal::Busy));
        }
        let now = ticks();
        self.settling = Some(InputWait {
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
        let on_terminal = matches!(self.hold, ChildIo::Pty(_));
        let unread = self.unread_input();
        let root = self.own.pid;
        let Some(settling) = self.settling.as_mut().filter(|settling| now >= settling.wakes_at()) else {
            return;
        };
        let found = match &settling.input {
            // Unread input means that no process waits for it.
            _ if unread => InputReadState::Elsewhere,
            Some(input) => look(root, input),
            None => InputReadState::Untold,
        };
        let rest = match settling.judge(found, on_terminal, now) {
            Some(rest) => rest,
            None if now >= settling.give_up_at => IdleState::Busy,
            None => {
                let waited = now.saturating_sub(settling.began);
                settling.next_look = now + (waited / 8).clamp(SOONEST, LATEST);
                return;
            }
        };
        self.settled(rest, None);
    }

    /// Ends the wait because the child has exited.
    pub(super) fn settle_ended(&mut self, exit: &ChildExit) {
        self.settled(IdleState::Ended, Some(exit.clone()));
    }

    fn settled(&mut self, rest: IdleState, exit: Option<ChildExit>) {
        let Some(InputWait { client, .. }) = self.settling.take() else { return };
        // Output that the child printed before it read again is in the pipes by now.
        self.drain_all();
        self.drain_terminal();
        self.pump();
        let printed = self.spool.printed(0);
        self.clients.tell(client, KeeperResponse::Settled(InputConsumed { rest, printed, exit }));
    }

    /// Whether written input has not been consumed yet.
    fn unread_input(&self) -> bool {
        match &self.hold {
            ChildIo::Pipes(Some(input)) => {
                self.stdin.waits() || rustix::io::ioctl_fionread(input).is_ok_and(|unread| unread > 0)
            }
            ChildIo::Pipes(None) | ChildIo::Shell | ChildIo::Pty(_) => false,
        }
    }

    fn input_name(&self) -> Option<PathBuf> {
        match &self.hold {
            ChildIo::Pipes(Some(input)) => name_of(input),
            ChildIo::Pty(_) => procs::descriptor(self.child.pid, 0),
            ChildIo::Pipes(None) | ChildIo::Shell => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: BlockedReader = BlockedReader { thread: 7, sleeps: 3 };
    const WOKEN: BlockedReader = BlockedReader { thread: 7, sleeps: 4 };

    fn settling(prompt: &str, deaf: Option<BlockedReader>) -> InputWait {
        InputWait {
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

    /// The judgement for a constant observation every 10 ms, and its time in milliseconds.
    fn judged(mut settling: InputWait, found: InputReadState, on_terminal: bool) -> Option<(u64, IdleState)> {
        (1..500).find_map(|ten| Some((ten * 10, settling.judge(found, on_terminal, ten * 10_000)?)))
    }

    #[test]
    fn a_reader_of_a_pipe_is_known_at_once_and_one_of_a_terminal_when_it_was_woken_and_is_steady() {
        assert_eq!(
            judged(settling("", None), InputReadState::Reads(READER), false),
            Some((10, IdleState::Reads))
        );
        assert_eq!(
            judged(settling("", Some(READER)), InputReadState::Reads(WOKEN), true),
            Some((30, IdleState::Reads))
        );
        // The reader has not been woken, so it has not consumed the input. The result is a guess.
        assert_eq!(
            judged(settling("", Some(READER)), InputReadState::Reads(READER), true),
            Some((1010, IdleState::Silent))
        );
    }

    #[test]
    fn who_waits_for_several_things_is_known_by_the_prompt_and_guessed_about_by_silence() {
        let mut prompted = settling("> ", None);
        prompted.ends[0] = b"42\n> ".to_vec();
        assert_eq!(judged(prompted, InputReadState::Waits(READER), false), Some((30, IdleState::Prompts)));
        assert_eq!(
            judged(settling("> ", None), InputReadState::Waits(READER), false),
            Some((1010, IdleState::Waits))
        );
    }

    #[test]
    fn who_is_seen_at_work_is_never_guessed_about_and_who_cannot_be_seen_always() {
        assert_eq!(judged(settling("", None), InputReadState::Elsewhere, false), None);
        assert_eq!(
            judged(settling("", None), InputReadState::Untold, false),
            Some((1000, IdleState::Silent))
        );
    }
}
