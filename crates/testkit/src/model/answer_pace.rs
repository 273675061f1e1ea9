//! Sends the body of an answer in pieces, with pauses and possibly truncated.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;

use super::{
    answer::AnswerPacing,
    gate::TestGate,
    record::{AnswerEnd, AnswerEndGuard},
};

#[derive(Debug)]
enum BodyStep {
    Send(Bytes),
    Pause(Duration),
    WaitAtGate(TestGate),
    CloseConnection,
}

/// Creates a body that is sent as `pacing` specifies, and records how it ended.
pub(super) fn body(pieces: Vec<String>, pacing: &AnswerPacing, ending: AnswerEndGuard) -> Body {
    let steps = steps(pieces, pacing);
    Body::from_stream(stream::unfold((steps, ending), |(mut steps, mut ending)| async move {
        loop {
            match steps.pop_front() {
                None => {
                    ending.set_end(AnswerEnd::Complete);
                    return None;
                }
                Some(BodyStep::Send(bytes)) => {
                    return Some((Ok(bytes), (steps, ending)));
                }
                Some(BodyStep::Pause(pause)) => tokio::time::sleep(pause).await,
                Some(BodyStep::WaitAtGate(gate)) => gate.pass().await,
                Some(BodyStep::CloseConnection) => {
                    // The pieces so far are still buffered by the connection, which flushes them when it is idle.
                    tokio::time::sleep(FLUSH_DELAY).await;
                    ending.set_end(AnswerEnd::Cut);
                    return Some((Err(io::Error::other("cut as scripted")), (VecDeque::new(), ending)));
                }
            }
        }
    }))
}

const FLUSH_DELAY: Duration = Duration::from_millis(5);

fn steps(pieces: Vec<String>, pacing: &AnswerPacing) -> VecDeque<BodyStep> {
    let half = pieces.len() / 2;
    let mut remaining = pacing.cut_after_bytes.unwrap_or(usize::MAX);
    let mut steps = VecDeque::new();
    for (index, piece) in pieces.into_iter().enumerate() {
        if index > 0 && !pacing.pause.is_zero() {
            steps.push_back(BodyStep::Pause(pacing.pause));
        }
        if index == half
            && let Some(gate) = &pacing.gate_midway
        {
            steps.push_back(BodyStep::WaitAtGate(gate.clone()));
        }
        let mut bytes = Bytes::from(piece);
        bytes.truncate(remaining);
        remaining -= bytes.len();
        steps.push_back(BodyStep::Send(bytes));
        if remaining == 0 {
            break;
        }
    }
    // An answer shorter than its cut is truncated at its end: the proper terminator is missing.
    if pacing.cut_after_bytes.is_some() {
        steps.push_back(BodyStep::CloseConnection);
    }
    steps
}
