//! Sends input to a program that is not a tracked shell, and reads its output until it waits for input again.
//!
//! The keeper learns from the kernel whether the program waits for input, or reports that it can only guess. The
//! presentation to the model is not here.

use abide_keeper::protocol::{
    IdleState, InputConsumed, JobOutputRange, KeeperRefusal, KeeperRequest, KeeperResponse, OutputStream,
    TaggedRequest, TaggedResponse, WriteAndWait,
};
use abide_terminal::{ScreenText, TerminalSize, draw};

use super::call::SessionReply;
use super::found::{LiveSession, PATIENCE_MS};
use super::record::OutputProgress;
use crate::tool::clock::ticks_ms;
use crate::tool::recorder::OutputRecorder;
use crate::tool::workbench::{ProgramState, StopFlag};

const FOLLOW: u64 = 1;
const SAY: u64 = 2;
const SCREEN: u64 = 3;
const TAIL: u64 = 4;
const LOOK_MS: u64 = 50;
/// Silence after which a program counts as waiting, if the kernel does not tell.
const QUIET_MS: u64 = 1_000;
/// The same for a program whose known prompt was not printed, because it has probably not finished.
const QUIET_WITHOUT_PROMPT_MS: u64 = 3_000;
/// Additional time for the keeper's response after its own timeout.
const SLACK_MS: u64 = 5_000;
/// Timeout for the last output after the program has settled.
const REST_MS: u64 = 5_000;
/// Timeout until a new program waits for input for the first time.
pub(crate) const FIRST_MS: u64 = 20_000;
/// Timeout and silence when a program that may still be busy is only observed.
const GLANCE_MS: u64 = 500;
const GLANCE_QUIET_MS: u64 = 200;
/// Maximum number of bytes of terminal output that are rendered.
const DRAWN: u64 = abide_keeper::protocol::MAX_PAGE_BYTES;
/// The prompt of interpreters inside an unfinished block.
const CONTINUATION: &str = "... ";
/// Maximum length of a prompt, in bytes.
const MOST_PROMPT: usize = 64;

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
pub(crate) fn say(
    living: &mut LiveSession,
    saying: SessionInput<'_>,
    recorder: &mut OutputRecorder,
    stop: &StopFlag,
) -> SessionReply {
    let SessionInput { action, text, timeout_ms } = saying;
    let place = living.notes.clone();
    let mut heard = OutputProgress::read(&place);
    let bytes = text.map(|text| keys(text, living.record.pty.is_some())).unwrap_or_default();
    heard.lines_sent += bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() as u64;
    let quiet_ms = if heard.prompt.is_empty() { QUIET_MS } else { QUIET_WITHOUT_PROMPT_MS };
    let say = WriteAndWait { bytes, prompt: heard.prompt.clone().into_bytes(), quiet_ms, timeout_ms };
    let from = OutputStream::ALL.map(|stream| recorder.stream(stream).printed);
    let SessionExchange { settled, mut spoken } =
        exchange(living, say, &mut heard.seen, recorder, Some(stop));
    let rest = settled.as_ref().map(|settled| settled.rest);
    let mut continues = false;
    match rest {
        Some(IdleState::Reads | IdleState::Prompts | IdleState::Waits | IdleState::Silent) => {
            if text.is_none() && heard.prompt.is_empty() {
                (heard.prompt, heard.prompt_stream) = prompt(recorder);
            }
            continues = withhold_prompts(&heard, from, recorder);
            (heard.lines_sent, heard.unfinished) = (0, None);
        }
        Some(IdleState::Busy) | None => {
            if text.is_some() || heard.unfinished.is_none() {
                heard.unfinished = Some(action.to_owned());
            }
        }
        Some(IdleState::Ended) => {}
    }
    heard.write(&place);
    if let Some(settled) = settled {
        conclude(&mut spoken, &settled, timeout_ms);
    }
    // The continuation prompt is not shown, so a remark replaces it.
    if spoken.remark.is_none() && continues {
        spoken.remark = Some(
            "the program waits for the rest of what was begun; send the rest, or an empty line to end a block"
                .to_owned(),
        );
    }
    spoken
}

/// Observes briefly what a program does, without sending input, and records its output.
pub(crate) fn look(living: &mut LiveSession, recorder: &mut OutputRecorder) -> ProgramState {
    let place = living.notes.clone();
    let mut heard = OutputProgress::read(&place);
    let prompt = heard.prompt.clone().into_bytes();
    let say = WriteAndWait { bytes: Vec::new(), prompt, quiet_ms: GLANCE_QUIET_MS, timeout_ms: GLANCE_MS };
    let from = OutputStream::ALL.map(|stream| recorder.stream(stream).printed);
    let SessionExchange { settled, spoken } = exchange(living, say, &mut heard.seen, recorder, None);
    let progress = match settled.map(|settled| settled.rest) {
        Some(IdleState::Reads | IdleState::Prompts) => ProgramState::Finished,
        // A program that waits for several events, or that cannot be inspected, shows by its prompt that it has
        // finished.
        Some(IdleState::Waits | IdleState::Silent) if heard.prompt.is_empty() => ProgramState::Unclear,
        Some(IdleState::Waits | IdleState::Silent) if is_at_prompt(living, &heard) => ProgramState::Finished,
        Some(IdleState::Waits | IdleState::Silent | IdleState::Busy) => ProgramState::AtWork,
        Some(IdleState::Ended) => ProgramState::Ended,
        None if spoken.ended.is_some() => ProgramState::Ended,
        None => ProgramState::Unclear,
    };
    if progress == ProgramState::Finished {
        withhold_prompts(&heard, from, recorder);
        (heard.lines_sent, heard.unfinished) = (0, None);
    }
    heard.write(&place);
    progress
}

/// Records which call a program is busy with, so that later output is not attributed to another call.
pub(crate) fn note_unfinished(living: &LiveSession, action: &str) {
    let place = &living.notes;
    OutputProgress { unfinished: Some(action.to_owned()), ..OutputProgress::read(place) }.write(place);
}

/// The call that the program was still busy with when its output was last read.
pub(crate) fn unfinished(living: &LiveSession) -> Option<String> {
    OutputProgress::read(&living.notes).unfinished
}

/// The raw result of sending input.
struct SessionExchange {
    settled: Option<InputConsumed>,
    spoken: SessionReply,
}

/// Sends input and records the output until the program has settled. `at` is the offset of each stream up to which
/// output was read.
fn exchange(
    living: &mut LiveSession,
    say: WriteAndWait,
    at: &mut [u64; 2],
    recorder: &mut OutputRecorder,
    stop: Option<&StopFlag>,
) -> SessionExchange {
    let give_up_at = ticks_ms().saturating_add(say.timeout_ms).saturating_add(SLACK_MS);
    let link = &mut living.keeper.link;
    let (mut settled, mut spoken): (Option<InputConsumed>, SessionReply) = (None, SessionReply::default());
    let follow = TaggedRequest { tag: FOLLOW, act: KeeperRequest::FollowClosely { job: 0, from: *at } };
    if link.send(&follow).is_err()
        || link.send(&TaggedRequest { tag: SAY, act: KeeperRequest::Say(say) }).is_err()
    {
        return SessionExchange { settled, spoken: keeper_lost() };
    }
    let mut refused = false;
    let mut rest_by = u64::MAX;
    while settled.as_ref().is_none_or(|settled| at[0] < settled.printed[0] || at[1] < settled.printed[1]) {
        if spoken.ended.is_some() && (refused || settled.is_some()) {
            break;
        }
        let Ok(answer) = link.wait::<TaggedResponse>(LOOK_MS) else {
            spoken = keeper_lost();
            break;
        };
        match answer {
            Some(TaggedResponse { tag: FOLLOW, news: KeeperResponse::Output(output) }) => {
                let seen = &mut at[output.stream.index()];
                // Output that was followed earlier on this connection may be repeated.
                let known = usize::try_from(seen.saturating_sub(output.offset)).unwrap_or(usize::MAX);
                let Some(fresh) = output.bytes.get(known..).filter(|fresh| !fresh.is_empty()) else {
                    continue;
                };
                recorder.lost(output.stream, output.offset.saturating_sub(*seen));
                *seen = output.offset + output.bytes.len() as u64;
                recorder.push(output.stream, fresh);
            }
            Some(TaggedResponse { tag: SAY, news: KeeperResponse::Settled(news) }) => {
                settled = Some(news);
                rest_by = ticks_ms() + REST_MS;
            }
            // The program had ended before it received the input; its output is still recorded.
            Some(TaggedResponse { tag: SAY, news: KeeperResponse::Refused(KeeperRefusal::Ended) }) => {
                refused = true
            }
            Some(TaggedResponse { tag: SAY, news: KeeperResponse::Refused(refusal) }) => {
                spoken.trouble = Some(refusal.to_string());
                break;
            }
            // No output follows, even if more was announced.
            Some(TaggedResponse { tag: FOLLOW, news: KeeperResponse::Ended(outcome) }) => {
                spoken.ended = Some(Some(outcome.code))
            }
            Some(_) => {}
            None if link.is_closed() => {
                spoken = keeper_lost();
                break;
            }
            None if stop.is_some_and(StopFlag::is_asked) => {
                spoken.interrupted = true;
                break;
            }
            None if ticks_ms() >= give_up_at.min(rest_by) => break,
            None => {}
        }
    }
    // Announced output that did not arrive was dropped from the spool.
    if let Some(settled) = &settled {
        for stream in OutputStream::ALL {
            let seen = &mut at[stream.index()];
            recorder.lost(stream, settled.printed[stream.index()].saturating_sub(*seen));
            *seen = settled.printed[stream.index()].max(*seen);
        }
    }
    SessionExchange { settled, spoken }
}

/// The keeper of a session is gone, and with it the session.
pub(super) fn keeper_lost() -> SessionReply {
    let trouble = Some("the process that holds the session was killed".to_owned());
    SessionReply { ended: Some(None), trouble, ..SessionReply::default() }
}

/// Removes the prompts at which an idle program waits from the shown output. They are identified by their position at
/// the end of the prompt stream, never by their text alone. If several lines were sent together, earlier prompts are
/// removed only if there is no other output. Returns whether the last prompt continues a block.
fn withhold_prompts(heard: &OutputProgress, from: [u64; 2], recorder: &mut OutputRecorder) -> bool {
    if heard.prompt.is_empty() {
        return false;
    }
    let mut continues = false;
    let prompts = [heard.prompt.as_bytes(), CONTINUATION.as_bytes()];
    for stream in
        OutputStream::ALL.into_iter().filter(|one| heard.prompt_stream.is_none_or(|known| known == *one))
    {
        let recorded = recorder.stream(stream);
        let all = recorded.all();
        let Some(last) = prompts.iter().find(|prompt| all.ends_with(prompt)) else { continue };
        let since = usize::try_from(from[stream.index()]).unwrap_or(usize::MAX);
        let said = all.get(since..).filter(|_| recorded.is_whole()).unwrap_or_default();
        let count = if consists_of(said, &prompts).is_some_and(|count| count <= heard.lines_sent.max(1)) {
            said.len()
        } else {
            last.len()
        };
        continues |= *last == CONTINUATION.as_bytes();
        recorder.withhold(stream, count);
    }
    continues
}

/// The number of these texts that `bytes` is a sequence of; `None` if there is anything else.
fn consists_of(mut bytes: &[u8], texts: &[&[u8]]) -> Option<u64> {
    let mut count = 0;
    while !bytes.is_empty() {
        bytes = texts.iter().find_map(|text| bytes.strip_prefix(*text))?;
        count += 1;
    }
    Some(count)
}

/// Whether the output of a program ends with its prompt.
fn is_at_prompt(living: &mut LiveSession, heard: &OutputProgress) -> bool {
    let prompt = heard.prompt.as_bytes();
    let mut ends_with_prompt = |stream: OutputStream| {
        let printed = heard.seen[stream.index()];
        let offset = printed.saturating_sub(prompt.len() as u64);
        let range = JobOutputRange { job: 0, stream, offset, limit: prompt.len() as u64 };
        let piece = living.keeper.ask(TAIL, KeeperRequest::Read(range), PATIENCE_MS);
        matches!(piece, Ok(KeeperResponse::Piece(piece)) if piece.bytes == prompt)
    };
    match heard.prompt_stream {
        Some(stream) => ends_with_prompt(stream),
        None => OutputStream::ALL.into_iter().any(&mut ends_with_prompt),
    }
}

/// Translates the state of the program into the result of the call.
fn conclude(spoken: &mut SessionReply, settled: &InputConsumed, timeout_ms: u64) {
    match settled.rest {
        IdleState::Reads | IdleState::Prompts => {}
        IdleState::Waits | IdleState::Silent => {
            spoken.remark = Some(
                "the program has been silent for a while, so it is guessed that this is its whole answer; \
                 call again without text to see whether more has come"
                    .to_owned(),
            );
        }
        IdleState::Busy => {
            spoken.timed_out = true;
            spoken.remark = Some(format!(
                "the program is still at work after {} s and goes on; call again without text to see what has come \
                 since, or end the session",
                timeout_ms.div_ceil(1_000)
            ));
        }
        IdleState::Ended => spoken.ended = Some(settled.exit.as_ref().map(|exit| exit.code)),
    }
}

/// The bytes of a text as typed: a line, unless it ends with a control character such as ctrl-c.
fn keys(text: &str, on_terminal: bool) -> Vec<u8> {
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
fn prompt(recorder: &OutputRecorder) -> (String, Option<OutputStream>) {
    let unfinished = |stream| {
        let all = recorder.stream(stream).all();
        let line = all.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let text = String::from_utf8(line.to_vec()).ok()?;
        (!text.trim().is_empty() && text.len() <= MOST_PROMPT).then_some((text, Some(stream)))
    };
    unfinished(OutputStream::Stdout).or_else(|| unfinished(OutputStream::Stderr)).unwrap_or_default()
}

/// The present content of the session's terminal.
pub(crate) fn screen(living: &mut LiveSession) -> Option<ScreenText> {
    let (rows, cols) = living.record.pty?;
    let mut read = |offset| {
        let range = JobOutputRange { job: 0, stream: OutputStream::Stdout, offset, limit: DRAWN };
        match living.keeper.ask(SCREEN, KeeperRequest::Read(range), PATIENCE_MS) {
            Ok(KeeperResponse::Piece(piece)) => Some(piece),
            Ok(_) | Err(_) => None,
        }
    };
    let mut piece = read(0)?;
    if piece.printed > piece.offset + DRAWN {
        piece = read(piece.printed - DRAWN)?;
    }
    Some(draw(&piece.bytes, TerminalSize { rows, cols }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_line_and_a_key_is_only_itself() {
        assert_eq!(keys("1+1", false), b"1+1\n");
        assert_eq!(keys("1+1\n", false), b"1+1\n");
        assert_eq!(keys("a\nb", true), b"a\rb\r");
        assert_eq!(keys("\u{3}", true), b"\x03");
        assert_eq!(keys(":q\u{1b}", true), b":q\x1b");
        assert_eq!(keys("ls\n", true), b"ls\r");
    }
}
