//! Asks the person at the terminal.

use std::{
    io::Write,
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use abide_agent::{ask_human::HumanQuestion, environment::HumanReply};
use abide_os::tty::TerminalModeGuard;

use crate::{
    error::eprint_line,
    runs::{ConsoleEvent, InputConsole, InputInterest},
    table::{ColourMode, TextStyle},
    terminal_text,
};

/// Interval at which the interrupt flag is polled.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Prints the question and waits for a line.
pub(super) fn ask(question: &HumanQuestion, interrupt: &AtomicBool) -> HumanReply {
    if !InputConsole::is_interactive() {
        return HumanReply::NoAnswer;
    }
    let colour = ColourMode::of_stderr();
    for line in lines(question, colour) {
        eprint_line(line);
    }
    read_answer(question, interrupt).unwrap_or(HumanReply::NoAnswer)
}

/// Formats the question and its options, with control characters escaped.
pub(super) fn lines(question: &HumanQuestion, colour: ColourMode) -> Vec<String> {
    let mut lines = vec![format!(
        "{} {}",
        colour.text(TextStyle::Warning, "?"),
        colour
            .text(TextStyle::Heading, terminal_text::escape_control_chars(question.question.trim()).as_str())
    )];
    let options = question.options.iter().enumerate();
    lines.extend(
        options.map(|(index, option)| format!("  {}) {}", index + 1, terminal_text::one_line(option))),
    );
    lines
}

fn read_answer(question: &HumanQuestion, interrupt: &AtomicBool) -> anyhow::Result<HumanReply> {
    let mut console = InputConsole::new()?;
    // The wake-up socket is never written: only the terminal is waited for.
    let (wakeup, _silent) = UnixStream::pair()?;
    let _echo = question.sensitive.then(TerminalModeGuard::without_echo);
    console.discard_pending_input();
    // The prompt is printed after pending input is discarded, so that input typed earlier is not taken as the answer.
    prompt();
    loop {
        match console.wait(&wakeup, InputInterest::Read, Some(INTERRUPT_POLL_INTERVAL))? {
            ConsoleEvent::Input(typed) if typed.trim().is_empty() => prompt(),
            ConsoleEvent::Input(typed) => return Ok(HumanReply::Answered(question.resolve(&typed))),
            ConsoleEvent::Closed => return Ok(HumanReply::NoAnswer),
            ConsoleEvent::Interrupted => return Ok(HumanReply::Interrupted),
            ConsoleEvent::Wakeup | ConsoleEvent::TimedOut => {
                if interrupt.load(Ordering::Relaxed) {
                    return Ok(HumanReply::Interrupted);
                }
            }
        }
    }
}

fn prompt() {
    let mut err = std::io::stderr().lock();
    // A closed stderr is no reason to stop.
    err.write_all(b"answer: ").and_then(|()| err.flush()).ok();
}
