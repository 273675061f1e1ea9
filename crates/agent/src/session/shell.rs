//! A command in a session whose shell takes commands: its output, its exit code and its end are known exactly.

use abide_keeper::protocol::{Act, Answer, Input, News, Order, Outcome, Run};
use abide_terminal::Shell;

use super::call::Spoken;
use super::found::Living;
use super::talk::keeper_lost;
use crate::tool::recorder::Recorder;
use crate::tool::workbench::Stop;

const RUN: u64 = 1;
const INTERRUPT: u64 = 2;
const LOOK_MS: u64 = 50;

/// Shown to the model when its command made the shell ignore the stop.
const SHELL_REPLACED: &str = "the shell could not be stopped and was replaced by a new one in the same directory; its \
     variables, functions and options are lost";

/// Runs a command; its time and how it is stopped are the keeper's matter.
pub(crate) fn run(
    living: &mut Living,
    shell: &Shell,
    command: &str,
    timeout_ms: u64,
    recorder: &mut Recorder,
    stop: &Stop,
) -> Spoken {
    let run = Run {
        text: shell.command(command, &[]).into_bytes(),
        input: Input::Nothing,
        timeout_ms: Some(timeout_ms),
        keep: 0,
        follow: true,
    };
    let link = &mut living.keeper.link;
    let (mut interrupted, mut is_replaced) = (false, false);
    if link.send(&Order { tag: RUN, act: Act::Run(run) }).is_err() {
        return keeper_lost();
    }
    loop {
        if !interrupted && stop.is_asked() {
            interrupted = true;
            if link.send(&Order { tag: INTERRUPT, act: Act::Interrupt }).is_err() {
                return Spoken { interrupted, ..keeper_lost() };
            }
        }
        let Ok(answer) = link.wait::<Answer>(LOOK_MS) else {
            return Spoken { interrupted, ..keeper_lost() };
        };
        match answer {
            Some(Answer { tag: RUN, news: News::Output(output) }) => {
                recorder.push(output.stream, &output.bytes)
            }
            Some(Answer { news: News::ShellRestarted(_), .. }) => is_replaced = true,
            Some(Answer { tag: RUN, news: News::Ended(outcome) }) => {
                let remark = is_replaced.then(|| SHELL_REPLACED.to_owned());
                return Spoken { remark, ..spoken(outcome, interrupted) };
            }
            Some(Answer { tag: RUN, news: News::Refused(refusal) }) => {
                return Spoken { trouble: Some(refusal.to_string()), ..Spoken::default() };
            }
            Some(_) => {}
            None if link.is_closed() => {
                return Spoken { interrupted, ..keeper_lost() };
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
        before: String::new(),
    }
}
