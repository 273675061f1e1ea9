//! A command in a session whose shell takes commands: its output, its exit code and its end are known exactly.

use abide_keeper::protocol::{Act, Answer, Input, News, Order, Outcome, Run};
use abide_terminal::Shell;

use super::call::Spoken;
use super::found::Living;
use crate::tool::recorder::Recorder;
use crate::tool::workbench::{Stop, ToolError};

const RUN: u64 = 1;
const INTERRUPT: u64 = 2;
const LOOK_MS: u64 = 50;

/// Runs a command; its time and how it is stopped are the keeper's matter.
pub(crate) fn run(
    living: &mut Living,
    shell: &Shell,
    command: &str,
    timeout_ms: u64,
    recorder: &mut Recorder,
    stop: &Stop,
) -> Result<Spoken, ToolError> {
    let run = Run {
        text: shell.command(command, &[]).into_bytes(),
        input: Input::Nothing,
        timeout_ms: Some(timeout_ms),
        keep: 0,
        follow: true,
    };
    let link = &mut living.keeper.link;
    link.send(&Order { tag: RUN, act: Act::Run(run) })?;
    let mut interrupted = false;
    loop {
        if !interrupted && stop.is_asked() {
            interrupted = true;
            link.send(&Order { tag: INTERRUPT, act: Act::Interrupt })?;
        }
        match link.wait::<Answer>(LOOK_MS)? {
            Some(Answer { tag: RUN, news: News::Output(output) }) => {
                recorder.push(output.stream, &output.bytes)
            }
            Some(Answer { tag: RUN, news: News::Ended(outcome) }) => return Ok(spoken(outcome, interrupted)),
            Some(Answer { tag: RUN, news: News::Refused(refusal) }) => {
                return Ok(Spoken { trouble: Some(refusal.to_string()), ..Spoken::default() });
            }
            Some(_) => {}
            None if link.is_closed() => {
                let trouble = Some("whoever held the session was killed".to_owned());
                return Ok(Spoken { ended: Some(None), trouble, interrupted, ..Spoken::default() });
            }
            None => {}
        }
    }
}

fn spoken(outcome: Outcome, interrupted: bool) -> Spoken {
    Spoken {
        exit_code: Some(outcome.code),
        ended: outcome.exit.map(|exit| Some(exit.code)),
        timed_out: outcome.timed_out,
        interrupted,
        trouble: outcome.lost,
        remark: None,
    }
}
