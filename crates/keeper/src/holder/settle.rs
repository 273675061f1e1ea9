//! Something is said to the child, and whoever said it is told when the child has dealt with it.
//!
//! Known where the kernel tells: the input is empty and a process of the tree is blocked reading it. Where it does not
//! tell, silence is all there is, and the answer says that it was guessed. Shells that take commands need none of this.

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

/// Somebody who waits for the child to read again.
#[derive(Debug)]
pub(super) struct InputWait {
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
    deaf: Option<BlockedReader>,
    /// Who was seen waiting last.
    seen: Option<BlockedReader>,
}

/// How long a reader has to be seen unchanged where input or output takes a way of its own through the kernel, or where
/// it waits for other things as well, in microseconds.
const STEADY: u64 = 15_000;
/// The bounds between two looks, in microseconds.
const SOONEST: u64 = 1_000;
const LATEST: u64 = 50_000;
/// The longest prompt that is recognised.
const MOST_PROMPT: usize = 256;

impl InputWait {
    pub(super) fn wakes_at(&self) -> u64 {
        self.next_look.min(self.give_up_at)
    }

    /// Something was printed.
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

    /// What the child does, if it is sure enough by now.
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
    /// Passes text on and begins to wait. Who waited before is told that somebody else does now.
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
            // What is not read yet says all: nobody can be waiting for it.
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

    /// The child is gone: whoever waits for it need not any longer.
    pub(super) fn settle_ended(&mut self, exit: &ChildExit) {
        self.settled(IdleState::Ended, Some(exit.clone()));
    }

    fn settled(&mut self, rest: IdleState, exit: Option<ChildExit>) {
        let Some(InputWait { client, .. }) = self.settling.take() else { return };
        // What it printed before it went to read is in the pipes by now.
        self.drain_all();
        self.drain_terminal();
        self.pump();
        let printed = self.spool.printed(0);
        self.clients.tell(client, KeeperResponse::Settled(InputConsumed { rest, printed, exit }));
    }

    /// Whether something that was said has not been taken yet.
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

    /// What is judged, and when in milliseconds, if the same is found every ten.
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
        // It has not been woken, so it has not heard: what it does by now is a guess.
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
