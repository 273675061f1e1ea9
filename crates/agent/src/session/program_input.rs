//! Sends input to a program that is not a tracked shell, and reads its output until it waits for input again.
//!
//! The keeper learns from the kernel whether the program waits for input, or reports that it can only guess. The
//! presentation to the model is not here.

use abide_keeper::client::{KeeperRequests, timeouts::STOP_POLL_MS};
use abide_keeper::protocol::{
    IdleState, InputConsumed, JobOutputRange, KeeperRefusal, KeeperRequest, KeeperResponse, OutputStream,
    TaggedResponse, WriteAndWait,
};
use abide_terminal::{ScreenText, TerminalSize, draw};

use super::call::SessionReply;
use super::lookup::LiveSession;
use super::record::OutputProgress;
use crate::tool::clock::monotonic_millis;
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::{ProgramState, StopFlag};

/// Silence after which a program counts as waiting, if the kernel does not tell.
const QUIET_MS: u64 = 1_000;
/// The same for a program whose known prompt was not printed, because it has probably not finished.
const QUIET_WITHOUT_PROMPT_MS: u64 = 3_000;
/// Additional time for the keeper's response after its own timeout.
const RESPONSE_SLACK_MS: u64 = 5_000;
/// Timeout for the last output after the program has settled.
const LAST_OUTPUT_TIMEOUT_MS: u64 = 5_000;
/// Timeout until a new program waits for input for the first time.
pub(crate) const FIRST_IDLE_TIMEOUT_MS: u64 = 20_000;
/// Timeout and silence when a program that may still be busy is only observed.
const OBSERVE_TIMEOUT_MS: u64 = 500;
const OBSERVE_QUIET_MS: u64 = 200;
/// Maximum number of bytes of terminal output that are rendered.
const MAX_RENDERED_BYTES: u64 = abide_keeper::protocol::MAX_PAGE_BYTES;
/// The prompt of interpreters inside an unfinished block.
const CONTINUATION_PROMPT: &str = "... ";
/// Maximum length of a prompt, in bytes.
const MAX_PROMPT_BYTES: usize = 64;

/// Input of a call to a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionInput<'a> {
    /// The id of the call.
    pub(crate) action: &'a str,
    /// `None` only waits for the program.
    pub(crate) text: Option<&'a str>,
    pub(crate) timeout_ms: u64,
}

/// Sends the text, if there is one, and records all output since the last call.
pub(crate) fn send_and_wait(
    session: &mut LiveSession,
    input: SessionInput<'_>,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
) -> SessionReply {
    let SessionInput { action, text, timeout_ms } = input;
    let progress_dir = session.progress_dir.clone();
    let mut progress = OutputProgress::read(&progress_dir);
    let bytes = text.map(|text| typed_bytes(text, session.record.pty.is_some())).unwrap_or_default();
    progress.lines_sent += bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() as u64;
    let quiet_ms = if progress.prompt.is_empty() { QUIET_MS } else { QUIET_WITHOUT_PROMPT_MS };
    let request = WriteAndWait { bytes, prompt: progress.prompt.clone().into_bytes(), quiet_ms, timeout_ms };
    let from = OutputStream::ALL.map(|stream| recorder.stream(stream).total_bytes);
    let SessionExchange { consumed, mut reply } =
        exchange(session, request, &mut progress.seen, recorder, Some(stop));
    let idle_state = consumed.as_ref().map(|consumed| consumed.rest);
    let mut continues = false;
    match idle_state {
        Some(IdleState::Reads | IdleState::Prompts | IdleState::Waits | IdleState::Silent) => {
            if text.is_none() && progress.prompt.is_empty() {
                (progress.prompt, progress.prompt_stream) = detect_prompt(recorder);
            }
            continues = hide_prompts(&progress, from, recorder);
            (progress.lines_sent, progress.unfinished) = (0, None);
        }
        Some(IdleState::Busy) | None => {
            if text.is_some() || progress.unfinished.is_none() {
                progress.unfinished = Some(action.to_owned());
            }
        }
        Some(IdleState::Ended) => {}
    }
    progress.write(&progress_dir);
    if let Some(consumed) = consumed {
        apply_idle_state(&mut reply, &consumed, timeout_ms);
    }
    // The continuation prompt is not shown, so a remark replaces it.
    if reply.note.is_none() && continues {
        reply.note = Some(
            "the input is incomplete and the program waits for the rest; send it, or an empty line to end a block"
                .to_owned(),
        );
    }
    reply
}

/// Observes briefly what a program does, without sending input, and records its output.
pub(crate) fn observe(session: &mut LiveSession, recorder: &mut OutputRecorder) -> ProgramState {
    let progress_dir = session.progress_dir.clone();
    let mut output_progress = OutputProgress::read(&progress_dir);
    let prompt = output_progress.prompt.clone().into_bytes();
    let request = WriteAndWait {
        bytes: Vec::new(),
        prompt,
        quiet_ms: OBSERVE_QUIET_MS,
        timeout_ms: OBSERVE_TIMEOUT_MS,
    };
    let from = OutputStream::ALL.map(|stream| recorder.stream(stream).total_bytes);
    let SessionExchange { consumed: settled, reply } =
        exchange(session, request, &mut output_progress.seen, recorder, None);
    let progress = match settled.map(|settled| settled.rest) {
        Some(IdleState::Reads | IdleState::Prompts) => ProgramState::WaitingForInput,
        // A program that waits for several events, or that cannot be inspected, shows by its prompt that it has
        // finished.
        Some(IdleState::Waits | IdleState::Silent) if output_progress.prompt.is_empty() => {
            ProgramState::Unknown
        }
        Some(IdleState::Waits | IdleState::Silent) if is_at_prompt(session, &output_progress) => {
            ProgramState::WaitingForInput
        }
        Some(IdleState::Waits | IdleState::Silent | IdleState::Busy) => ProgramState::Busy,
        Some(IdleState::Ended) => ProgramState::Ended,
        None if reply.session_exit.is_some() => ProgramState::Ended,
        None => ProgramState::Unknown,
    };
    if progress == ProgramState::WaitingForInput {
        hide_prompts(&output_progress, from, recorder);
        (output_progress.lines_sent, output_progress.unfinished) = (0, None);
    }
    output_progress.write(&progress_dir);
    progress
}

/// Records which call a program is busy with, so that later output is not attributed to another call.
pub(crate) fn record_unfinished_call(session: &LiveSession, action: &str) {
    let progress_dir = &session.progress_dir;
    OutputProgress { unfinished: Some(action.to_owned()), ..OutputProgress::read(progress_dir) }
        .write(progress_dir);
}

/// The call that the program was still busy with when its output was last read.
pub(crate) fn unfinished_call(session: &LiveSession) -> Option<String> {
    OutputProgress::read(&session.progress_dir).unfinished
}

/// The raw result of sending input.
struct SessionExchange {
    consumed: Option<InputConsumed>,
    reply: SessionReply,
}

/// Sends input and records the output until the program has settled. `read_offsets` are the offsets of both streams
/// up to which output was read.
fn exchange(
    session: &mut LiveSession,
    request: WriteAndWait,
    read_offsets: &mut [u64; 2],
    recorder: &mut OutputRecorder,
    stop: Option<&StopFlag>,
) -> SessionExchange {
    let give_up_at = monotonic_millis().saturating_add(request.timeout_ms).saturating_add(RESPONSE_SLACK_MS);
    let keeper = &mut session.keeper;
    let (mut settled, mut reply): (Option<InputConsumed>, SessionReply) = (None, SessionReply::default());
    let follow = keeper.send(KeeperRequest::FollowClosely { job: 0, from: *read_offsets });
    let (Ok(follow), Ok(write)) = (follow, keeper.send(KeeperRequest::Say(request))) else {
        return SessionExchange { consumed: settled, reply: keeper_lost_reply() };
    };
    let mut refused = false;
    let mut rest_by = u64::MAX;
    while settled
        .as_ref()
        .is_none_or(|settled| read_offsets[0] < settled.printed[0] || read_offsets[1] < settled.printed[1])
    {
        if reply.session_exit.is_some() && (refused || settled.is_some()) {
            break;
        }
        let Ok(answer) = keeper.next_response(STOP_POLL_MS) else {
            reply = keeper_lost_reply();
            break;
        };
        match answer {
            Some(TaggedResponse { tag, news: KeeperResponse::Output(output) }) if tag == follow => {
                let seen = &mut read_offsets[output.stream.index()];
                // Output that was followed earlier on this connection may be repeated.
                let repeated_bytes =
                    usize::try_from(seen.saturating_sub(output.offset)).unwrap_or(usize::MAX);
                let Some(fresh) = output.bytes.get(repeated_bytes..).filter(|fresh| !fresh.is_empty()) else {
                    continue;
                };
                recorder.record_loss(output.stream, output.offset.saturating_sub(*seen));
                *seen = output.offset + output.bytes.len() as u64;
                recorder.push(output.stream, fresh);
            }
            Some(TaggedResponse { tag, news: KeeperResponse::Settled(news) }) if tag == write => {
                settled = Some(news);
                rest_by = monotonic_millis() + LAST_OUTPUT_TIMEOUT_MS;
            }
            // The program had ended before it received the input; its output is still recorded.
            Some(TaggedResponse { tag, news: KeeperResponse::Refused(KeeperRefusal::Ended) })
                if tag == write =>
            {
                refused = true
            }
            Some(TaggedResponse { tag, news: KeeperResponse::Refused(refusal) }) if tag == write => {
                reply.failure = Some(refusal.to_string());
                break;
            }
            // No output follows, even if more was announced.
            Some(TaggedResponse { tag, news: KeeperResponse::Ended(outcome) }) if tag == follow => {
                reply.session_exit = Some(Some(outcome.code))
            }
            Some(_) => {}
            None if stop.is_some_and(StopFlag::is_set) => {
                reply.interrupted = true;
                break;
            }
            None if monotonic_millis() >= give_up_at.min(rest_by) => break,
            None => {}
        }
    }
    // Announced output that did not arrive was dropped from the spool.
    if let Some(settled) = &settled {
        for stream in OutputStream::ALL {
            let seen = &mut read_offsets[stream.index()];
            recorder.record_loss(stream, settled.printed[stream.index()].saturating_sub(*seen));
            *seen = settled.printed[stream.index()].max(*seen);
        }
    }
    SessionExchange { consumed: settled, reply }
}

/// The keeper of a session is gone, and with it the session.
pub(super) fn keeper_lost_reply() -> SessionReply {
    let failure = Some("the process that holds the session was killed".to_owned());
    SessionReply { session_exit: Some(None), failure, ..SessionReply::default() }
}

/// Removes the prompts at which an idle program waits from the shown output. They are identified by their position at
/// the end of the prompt stream, never by their text alone. If several lines were sent together, earlier prompts are
/// removed only if there is no other output. Returns whether the last prompt continues a block.
fn hide_prompts(progress: &OutputProgress, from: [u64; 2], recorder: &mut OutputRecorder) -> bool {
    if progress.prompt.is_empty() {
        return false;
    }
    let mut continues = false;
    let prompts = [progress.prompt.as_bytes(), CONTINUATION_PROMPT.as_bytes()];
    for stream in OutputStream::ALL
        .into_iter()
        .filter(|one| progress.prompt_stream.is_none_or(|prompt_stream| prompt_stream == *one))
    {
        let recorded = recorder.stream(stream);
        let all = recorded.head_and_tail();
        let Some(last) = prompts.iter().find(|prompt| all.ends_with(prompt)) else { continue };
        let since = usize::try_from(from[stream.index()]).unwrap_or(usize::MAX);
        let new_output = all.get(since..).filter(|_| recorded.is_complete()).unwrap_or_default();
        let count = if count_repetitions(new_output, &prompts)
            .is_some_and(|count| count <= progress.lines_sent.max(1))
        {
            new_output.len()
        } else {
            last.len()
        };
        continues |= *last == CONTINUATION_PROMPT.as_bytes();
        recorder.hide_tail(stream, count);
    }
    continues
}

/// The number of these texts that `bytes` is a sequence of; `None` if there is anything else.
fn count_repetitions(mut bytes: &[u8], texts: &[&[u8]]) -> Option<u64> {
    let mut count = 0;
    while !bytes.is_empty() {
        bytes = texts.iter().find_map(|text| bytes.strip_prefix(*text))?;
        count += 1;
    }
    Some(count)
}

/// Whether the output of a program ends with its prompt.
fn is_at_prompt(session: &mut LiveSession, progress: &OutputProgress) -> bool {
    let prompt = progress.prompt.as_bytes();
    let mut ends_with_prompt = |stream: OutputStream| {
        let printed = progress.seen[stream.index()];
        let offset = printed.saturating_sub(prompt.len() as u64);
        let range = JobOutputRange { job: 0, stream, offset, limit: prompt.len() as u64 };
        session.keeper.read(range).is_ok_and(|page| page.bytes == prompt)
    };
    match progress.prompt_stream {
        Some(stream) => ends_with_prompt(stream),
        None => OutputStream::ALL.into_iter().any(&mut ends_with_prompt),
    }
}

/// Translates the state of the program into the result of the call.
fn apply_idle_state(reply: &mut SessionReply, consumed: &InputConsumed, timeout_ms: u64) {
    match consumed.rest {
        IdleState::Reads | IdleState::Prompts => {}
        IdleState::Waits | IdleState::Silent => {
            reply.note = Some(
                "the program has been silent for a while, so this is probably its whole answer; \
                 call again without text to see whether there is more"
                    .to_owned(),
            );
        }
        IdleState::Busy => {
            reply.timed_out = true;
            reply.note = Some(format!(
                "the program is still working after {} s and continues; call again without text to see newer \
                 since, or end the session",
                timeout_ms.div_ceil(1_000)
            ));
        }
        IdleState::Ended => reply.session_exit = Some(consumed.exit.as_ref().map(|exit| exit.code)),
    }
}

/// The bytes of a text as typed: a line, unless it ends with a control character such as ctrl-c.
fn typed_bytes(text: &str, on_terminal: bool) -> Vec<u8> {
    if !on_terminal {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        return format!("{text}{end}").into_bytes();
    }
    // The enter key sends a carriage return, which the terminal translates to a line end.
    let typed = text.replace("\r\n", "\r").replace('\n', "\r");
    let end = if typed.ends_with(|last: char| last.is_control()) { "" } else { "\r" };
    format!("{typed}{end}").into_bytes()
}

/// The prompt of a program and its stream: the last line of the output, if it is unfinished.
fn detect_prompt(recorder: &OutputRecorder) -> (String, Option<OutputStream>) {
    let unfinished = |stream| {
        let all = recorder.stream(stream).head_and_tail();
        let line = all.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let text = String::from_utf8(line.to_vec()).ok()?;
        (!text.trim().is_empty() && text.len() <= MAX_PROMPT_BYTES).then_some((text, Some(stream)))
    };
    unfinished(OutputStream::Stdout).or_else(|| unfinished(OutputStream::Stderr)).unwrap_or_default()
}

/// The present content of the session's terminal.
pub(crate) fn read_screen(session: &mut LiveSession) -> Option<ScreenText> {
    let (rows, cols) = session.record.pty?;
    let mut read = |offset| {
        let range =
            JobOutputRange { job: 0, stream: OutputStream::Stdout, offset, limit: MAX_RENDERED_BYTES };
        session.keeper.read(range).ok()
    };
    let mut piece = read(0)?;
    if piece.printed > piece.offset + MAX_RENDERED_BYTES {
        piece = read(piece.printed - MAX_RENDERED_BYTES)?;
    }
    Some(draw(&piece.bytes, TerminalSize { rows, cols }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_line_and_a_key_is_only_itself() {
        assert_eq!(typed_bytes("1+1", false), b"1+1\n");
        assert_eq!(typed_bytes("1+1\n", false), b"1+1\n");
        assert_eq!(typed_bytes("a\nb", true), b"a\rb\r");
        assert_eq!(typed_bytes("\u{3}", true), b"\x03");
        assert_eq!(typed_bytes(":q\u{1b}", true), b":q\x1b");
        assert_eq!(typed_bytes("ls\n", true), b"ls\r");
    }
}
