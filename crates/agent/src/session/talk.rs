//! Something is said to a program that is no shell of ours, and what it answers is taken until it reads again.
//!
//! When that is so, the keeper knows from the kernel, or says that it is a guess. Not here: what a model is shown.

use abide_keeper::protocol::{Act, Answer, News, Order, Range, Refusal, Rest, Say, Settled, Stream};
use abide_terminal::{ScreenText, Size, draw};

use super::call::Spoken;
use super::found::{Living, PATIENCE_MS};
use super::record::Heard;
use crate::tool::clock::ticks_ms;
use crate::tool::recorder::Recorder;
use crate::tool::workbench::{Stop, ToolError};

const FOLLOW: u64 = 1;
const SAY: u64 = 2;
const SCREEN: u64 = 3;
const LOOK_MS: u64 = 50;
/// How long a program has to be silent where the kernel does not tell.
const QUIET_MS: u64 = 1_000;
/// The same for one whose prompt is known and was not seen: it has probably not finished.
const QUIET_WITHOUT_PROMPT_MS: u64 = 3_000;
/// How much longer than its own limit a keeper may take to answer.
const SLACK_MS: u64 = 5_000;
/// How long a program may take to be ready for the first time.
pub(crate) const FIRST_MS: u64 = 20_000;
/// How much of a terminal's output is drawn.
const DRAWN: u64 = 4 << 20;
/// The longest end of a line that is taken for a prompt.
const MOST_PROMPT: usize = 64;

/// Says something, or with no text only waits, and takes everything that was printed since the last time.
pub(crate) fn say(
    living: &mut Living,
    text: Option<&str>,
    timeout_ms: u64,
    recorder: &mut Recorder,
    stop: &Stop,
) -> Result<Spoken, ToolError> {
    let on_terminal = living.record.pty.is_some();
    let place = living.keeper.place.path().to_owned();
    let mut heard = Heard::read(&place);
    let mut at = heard.seen;
    let quiet_ms = if heard.prompt.is_empty() { QUIET_MS } else { QUIET_WITHOUT_PROMPT_MS };
    let say = Say {
        bytes: text.map(|text| keys(text, on_terminal)).unwrap_or_default(),
        prompt: heard.prompt.clone().into_bytes(),
        quiet_ms,
        timeout_ms,
    };
    let link = &mut living.keeper.link;
    link.send(&Order { tag: FOLLOW, act: Act::FollowClosely { job: 0, from: at } })?;
    link.send(&Order { tag: SAY, act: Act::Say(say) })?;
    let give_up_at = ticks_ms().saturating_add(timeout_ms).saturating_add(SLACK_MS);
    let (mut settled, mut interrupted): (Option<Settled>, bool) = (None, false);
    let mut spoken = Spoken::default();
    let mut refused = false;
    while settled.as_ref().is_none_or(|settled| at[0] < settled.printed[0] || at[1] < settled.printed[1]) {
        if spoken.ended.is_some() && (refused || settled.is_some()) {
            break;
        }
        match link.wait::<Answer>(LOOK_MS)? {
            Some(Answer { tag: FOLLOW, news: News::Output(output) }) => {
                let seen = &mut at[output.stream.index()];
                recorder.lost(output.stream, output.offset.saturating_sub(*seen));
                *seen = output.offset + output.bytes.len() as u64;
                recorder.push(output.stream, &output.bytes);
            }
            Some(Answer { tag: SAY, news: News::Settled(news) }) => settled = Some(news),
            // It had ended before it heard us; what it printed is still taken.
            Some(Answer { tag: SAY, news: News::Refused(Refusal::Ended) }) => refused = true,
            Some(Answer { tag: SAY, news: News::Refused(refusal) }) => {
                spoken.trouble = Some(refusal.to_string());
                break;
            }
            // Nothing more will come, whatever was announced.
            Some(Answer { tag: FOLLOW, news: News::Ended(outcome) }) => {
                spoken.ended = Some(Some(outcome.code))
            }
            Some(_) => {}
            None if link.is_closed() => {
                spoken.ended = Some(None);
                spoken.trouble = Some("whoever held the session was killed".to_owned());
                break;
            }
            None if stop.is_asked() => {
                interrupted = true;
                break;
            }
            None if ticks_ms() >= give_up_at => break,
            None => {}
        }
    }
    heard.seen = at;
    if text.is_none() && heard.prompt.is_empty() {
        heard.prompt = prompt(recorder);
    }
    heard.write(&place);
    spoken.interrupted = interrupted;
    if let Some(settled) = settled {
        conclude(&mut spoken, &settled, timeout_ms);
    }
    Ok(spoken)
}

/// What the state of the program means for whoever said something to it.
fn conclude(spoken: &mut Spoken, settled: &Settled, timeout_ms: u64) {
    match settled.rest {
        Rest::Reads | Rest::Prompts => {}
        Rest::Waits | Rest::Silent => {
            spoken.remark = Some(
                "the program has been silent for a while, so it is guessed that this is its whole answer; \
                 call again without text to see whether more has come"
                    .to_owned(),
            );
        }
        Rest::Busy => {
            spoken.timed_out = true;
            spoken.remark = Some(format!(
                "the program is still at work after {} s and goes on; call again without text to see what has come \
                 since, or end the session",
                timeout_ms.div_ceil(1_000)
            ));
        }
        Rest::Ended => spoken.ended = Some(settled.exit.as_ref().map(|exit| exit.code)),
    }
}

/// A text as it is typed: as a line, unless it ends with a key of its own such as ctrl-c.
fn keys(text: &str, on_terminal: bool) -> Vec<u8> {
    if !on_terminal {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        return format!("{text}{end}").into_bytes();
    }
    // Enter sends a carriage return; a program that reads lines gets it as the end of one.
    let typed = text.replace("\r\n", "\r").replace('\n', "\r");
    let end = if typed.ends_with(|last: char| last.is_control()) { "" } else { "\r" };
    format!("{typed}{end}").into_bytes()
}

/// What a program prints when it wants something: the end of a line that is not finished.
fn prompt(recorder: &Recorder) -> String {
    let unfinished = |stream| {
        let all = recorder.stream(stream).all();
        let line = all.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let text = String::from_utf8(line.to_vec()).ok()?;
        (!text.trim().is_empty() && text.len() <= MOST_PROMPT).then_some(text)
    };
    unfinished(Stream::Stdout).or_else(|| unfinished(Stream::Stderr)).unwrap_or_default()
}

/// What the terminal of a session shows now.
pub(crate) fn screen(living: &mut Living) -> Option<ScreenText> {
    let (rows, cols) = living.record.pty?;
    let mut read = |offset| {
        let range = Range { job: 0, stream: Stream::Stdout, offset, limit: DRAWN };
        match living.keeper.ask(SCREEN, Act::Read(range), PATIENCE_MS) {
            Ok(News::Piece(piece)) => Some(piece),
            Ok(_) | Err(_) => None,
        }
    };
    let mut piece = read(0)?;
    if piece.printed > piece.offset + DRAWN {
        piece = read(piece.printed - DRAWN)?;
    }
    Some(draw(&piece.bytes, Size { rows, cols }))
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
