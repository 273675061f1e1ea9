//! Writes input to the child and reports when the child has processed it.
//!
//! The kernel shows it where possible: the input is empty and a process of the tree is blocked in reading it. Otherwise
//! the keeper waits for a period without output, and the response states that the result is a guess. Shells that take
//! commands do not need this.

use std::path::PathBuf;

use super::ChildSupervisor;
use crate::blocked_reads::{BlockedReader, InputReadState, inspect_input};
use crate::child::ChildIo;
use crate::clock::boottime_micros;
use crate::output_pipes::fd_link_target;
use crate::process_tree;
use crate::protocol::{
    ChildExit, IdleState, InputConsumed, KeeperRefusal, KeeperResponse, OutputStream, WriteAndWait,
};

/// A client that waits until the child reads its input again.
#[derive(Debug)]
pub(super) struct InputWait {
    client: (u64, u64),
    input_link_target: Option<PathBuf>,
    prompt: Vec<u8>,
    quiet_us: u64,
    started_at: u64,
    give_up_at: u64,
    next_check_at: u64,
    /// Time of the last output, or of the last observation of a working child.
    last_active_at: u64,
    /// The last bytes that each stream printed since the write.
    output_tails: [Vec<u8>; 2],
    /// The reader observed before the input was written. If it is unchanged, the input has not been consumed.
    reader_before_write: Option<BlockedReader>,
    /// The blocked reader of the last check.
    last_reader: Option<BlockedReader>,
}

/// How long a reader must stay unchanged, in microseconds. It applies to terminals, whose data passes a kernel queue,
/// and to readers that also wait for other events.
const STEADY_READER_US: u64 = 15_000;
/// Minimum and maximum interval of checks, in microseconds.
const MIN_CHECK_INTERVAL_US: u64 = 1_000;
const MAX_CHECK_INTERVAL_US: u64 = 50_000;
/// Maximum length of a recognised prompt, in bytes.
const MAX_PROMPT_BYTES: usize = 256;

impl InputWait {
    pub(super) fn wakes_at(&self) -> u64 {
        self.next_check_at.min(self.give_up_at)
    }

    /// Records output of the child.
    pub(super) fn record_output(&mut self, stream: OutputStream, bytes: &[u8]) {
        let now = boottime_micros();
        self.last_active_at = now;
        self.next_check_at = self.next_check_at.min(now + MIN_CHECK_INTERVAL_US);
        let end = &mut self.output_tails[stream.index()];
        end.extend_from_slice(bytes.get(bytes.len().saturating_sub(MAX_PROMPT_BYTES)..).unwrap_or_default());
        let surplus = end.len().saturating_sub(MAX_PROMPT_BYTES);
        end.drain(..surplus);
    }

    fn ends_with_prompt(&self) -> bool {
        !self.prompt.is_empty() && self.output_tails.iter().any(|end| end.ends_with(&self.prompt))
    }

    /// Returns the state of the child once it is certain enough.
    fn idle_state(&mut self, found: InputReadState, on_terminal: bool, now: u64) -> Option<IdleState> {
        let reader = match found {
            InputReadState::BlockedInRead(reader) | InputReadState::BlockedInPoll(reader) => Some(reader),
            InputReadState::NotWaiting | InputReadState::Unknown => None,
        };
        if found == InputReadState::NotWaiting || self.last_reader != reader {
            self.last_active_at = now;
        }
        self.last_reader = reader;
        let silent_for = now.saturating_sub(self.last_active_at);
        let has_consumed = reader.is_some() && reader != self.reader_before_write;
        match found {
            InputReadState::BlockedInRead(_) if !on_terminal => Some(IdleState::Reads),
            InputReadState::BlockedInRead(_) if has_consumed && silent_for >= STEADY_READER_US => {
                Some(IdleState::Reads)
            }
            InputReadState::BlockedInPoll(_)
                if has_consumed && silent_for >= STEADY_READER_US && self.ends_with_prompt() =>
            {
                Some(IdleState::Prompts)
            }
            InputReadState::BlockedInPoll(_) if silent_for >= self.quiet_us => Some(IdleState::Waits),
            InputReadState::BlockedInRead(_) | InputReadState::Unknown if silent_for >= self.quiet_us => {
                Some(IdleState::Silent)
            }
            InputReadState::BlockedInRead(_)
            | InputReadState::BlockedInPoll(_)
            | InputReadState::Unknown
            | InputReadState::NotWaiting => None,
        }
    }
}

impl ChildSupervisor {
    /// Writes input and starts to wait. An earlier waiting client is notified that it was replaced.
    pub(super) fn write_and_wait(
        &mut self,
        say: WriteAndWait,
        client: (u64, u64),
    ) -> Result<(), KeeperRefusal> {
        if self.shell_driver.is_some() {
            return Err(KeeperRefusal::Unsupported("this shell takes commands".to_owned()));
        }
        if self.exit.is_some() || self.shutdown.is_some() {
            return Err(KeeperRefusal::Ended);
        }
        let input = self.input_link_target();
        let on_terminal = matches!(self.child_io, ChildIo::Pty(_));
        let reader_before_write = match &input {
            Some(input) if on_terminal && !say.bytes.is_empty() => {
                match inspect_input(self.own_identity.pid, input) {
                    InputReadState::BlockedInRead(reader) | InputReadState::BlockedInPoll(reader) => {
                        Some(reader)
                    }
                    InputReadState::NotWaiting | InputReadState::Unknown => None,
                }
            }
            Some(_) | None => None,
        };
        if !say.bytes.is_empty() {
            self.write_input(&say.bytes, false)?;
        }
        if let Some(earlier) = self.input_wait.take() {
            self.clients.send(earlier.client, KeeperResponse::Refused(KeeperRefusal::Busy));
        }
        let now = boottime_micros();
        self.input_wait = Some(InputWait {
            client,
            input_link_target: input,
            prompt: say.prompt,
            quiet_us: say.quiet_ms.saturating_mul(1_000),
            started_at: now,
            give_up_at: now.saturating_add(say.timeout_ms.saturating_mul(1_000)),
            next_check_at: now + MIN_CHECK_INTERVAL_US,
            last_active_at: now,
            output_tails: [Vec::new(), Vec::new()],
            reader_before_write,
            last_reader: None,
        });
        Ok(())
    }

    pub(super) fn advance_input_wait(&mut self, now: u64) {
        let on_terminal = matches!(self.child_io, ChildIo::Pty(_));
        let unread = self.has_unread_input();
        let root = self.own_identity.pid;
        let Some(wait) = self.input_wait.as_mut().filter(|wait| now >= wait.wakes_at()) else {
            return;
        };
        let found = match &wait.input_link_target {
            // Unread input means that no process waits for it.
            _ if unread => InputReadState::NotWaiting,
            Some(input) => inspect_input(root, input),
            None => InputReadState::Unknown,
        };
        let state = match wait.idle_state(found, on_terminal, now) {
            Some(state) => state,
            None if now >= wait.give_up_at => IdleState::Busy,
            None => {
                let waited = now.saturating_sub(wait.started_at);
                wait.next_check_at = now + (waited / 8).clamp(MIN_CHECK_INTERVAL_US, MAX_CHECK_INTERVAL_US);
                return;
            }
        };
        self.finish_input_wait(state, None);
    }

    /// Ends the wait because the child has exited.
    pub(super) fn finish_input_wait_on_exit(&mut self, exit: &ChildExit) {
        self.finish_input_wait(IdleState::Ended, Some(exit.clone()));
    }

    fn finish_input_wait(&mut self, state: IdleState, exit: Option<ChildExit>) {
        let Some(InputWait { client, .. }) = self.input_wait.take() else { return };
        // Output that the child printed before it read again is in the pipes by now.
        self.drain_all_pipes();
        self.drain_terminal();
        self.send_pending_output();
        let printed = self.spool.stream_bytes(0);
        self.clients.send(client, KeeperResponse::Settled(InputConsumed { rest: state, printed, exit }));
    }

    /// Whether written input has not been consumed yet.
    fn has_unread_input(&self) -> bool {
        match &self.child_io {
            ChildIo::Pipes(Some(input)) => {
                self.stdin.has_unsent() || rustix::io::ioctl_fionread(input).is_ok_and(|unread| unread > 0)
            }
            ChildIo::Pipes(None) | ChildIo::Shell | ChildIo::Pty(_) => false,
        }
    }

    fn input_link_target(&self) -> Option<PathBuf> {
        match &self.child_io {
            ChildIo::Pipes(Some(input)) => fd_link_target(input),
            ChildIo::Pty(_) => process_tree::fd_link_target(self.child.pid, 0),
            ChildIo::Pipes(None) | ChildIo::Shell => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: BlockedReader = BlockedReader { thread: 7, context_switches: 3 };
    const WOKEN: BlockedReader = BlockedReader { thread: 7, context_switches: 4 };

    fn input_wait(prompt: &str, deaf: Option<BlockedReader>) -> InputWait {
        InputWait {
            client: (0, 0),
            input_link_target: None,
            prompt: prompt.as_bytes().to_vec(),
            quiet_us: 1_000_000,
            started_at: 0,
            give_up_at: u64::MAX,
            next_check_at: 0,
            last_active_at: 0,
            output_tails: [Vec::new(), Vec::new()],
            reader_before_write: deaf,
            last_reader: None,
        }
    }

    /// The judgement for a constant observation every 10 ms, and its time in milliseconds.
    fn first_idle_state(
        mut settling: InputWait,
        found: InputReadState,
        on_terminal: bool,
    ) -> Option<(u64, IdleState)> {
        (1..500).find_map(|ten| Some((ten * 10, settling.idle_state(found, on_terminal, ten * 10_000)?)))
    }

    #[test]
    fn a_pipe_reader_is_idle_at_once_and_a_terminal_reader_after_a_wakeup_and_a_steady_period() {
        assert_eq!(
            first_idle_state(input_wait("", None), InputReadState::BlockedInRead(READER), false),
            Some((10, IdleState::Reads))
        );
        assert_eq!(
            first_idle_state(input_wait("", Some(READER)), InputReadState::BlockedInRead(WOKEN), true),
            Some((30, IdleState::Reads))
        );
        // The reader has not been woken, so it has not consumed the input. The result is a guess.
        assert_eq!(
            first_idle_state(input_wait("", Some(READER)), InputReadState::BlockedInRead(READER), true),
            Some((1010, IdleState::Silent))
        );
    }

    #[test]
    fn a_poller_is_idle_at_its_prompt_or_after_silence() {
        let mut prompted = input_wait("> ", None);
        prompted.output_tails[0] = b"42\n> ".to_vec();
        assert_eq!(
            first_idle_state(prompted, InputReadState::BlockedInPoll(READER), false),
            Some((30, IdleState::Prompts))
        );
        assert_eq!(
            first_idle_state(input_wait("> ", None), InputReadState::BlockedInPoll(READER), false),
            Some((1010, IdleState::Waits))
        );
    }

    #[test]
    fn a_visibly_busy_child_is_never_guessed_idle_and_an_invisible_one_always_is() {
        assert_eq!(first_idle_state(input_wait("", None), InputReadState::NotWaiting, false), None);
        assert_eq!(
            first_idle_state(input_wait("", None), InputReadState::Unknown, false),
            Some((1000, IdleState::Silent))
        );
    }
}
