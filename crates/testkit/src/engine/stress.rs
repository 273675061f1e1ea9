//! Output as it occurs in practice: split at any byte, truncated, unknown, very large or invalid.

use abide_domain::{engine::ProfileKind, event::TurnOutcome, process::ExitStatus};
use abide_ports::engine::{Engine, EngineFact, FactKind, OutputFormat};

use super::{sound, story::RecordedProcess};
use crate::dice::SeededRng;

pub(super) fn cutting_elsewhere_changes_nothing(
    engine: &dyn Engine,
    story: &RecordedProcess,
    facts: &[EngineFact],
) {
    for size in [1, 2, 3, 7, 61, 1021, 8192] {
        assert_eq!(story.play_in_pieces(engine, size), facts, "{}: cut by {size}", story.name);
    }
}

/// An interpreter restored from a checkpoint at any byte reports the same facts as one that read the whole output.
pub(super) fn a_restored_reader_goes_on_as_if_it_had_read_everything(
    engine: &dyn Engine,
    story: &RecordedProcess,
    facts: &[EngineFact],
) {
    let length = story.stdout.len();
    let step = (length / 61).max(1);
    for at in (0..length).step_by(step).chain([length]) {
        assert_eq!(story.play_restored(engine, at), facts, "{}: restored at byte {at}", story.name);
    }
}

/// A process that is killed at any byte ends its turn exactly once, and successfully only if it had finished.
pub(super) fn death_at_any_byte_is_one_end(engine: &dyn Engine, story: &RecordedProcess) {
    let length = story.stdout.len();
    let step = (length / 97).max(1);
    for at in (0..length).step_by(step) {
        let mut cut = story.clone();
        cut.stdout.truncate(at);
        cut.exit = ExitStatus::Code(137);
        cut.name = format!("{} killed at byte {at}", story.name);
        let facts = cut.play(engine);
        sound(&facts, &cut.name);
    }
}

pub(super) fn unknown_lines_are_kept_whole(
    engine: &dyn Engine,
    story: &RecordedProcess,
    facts: &[EngineFact],
) {
    let huge = format!("{{\"type\":\"abide.unheard_of\",\"blob\":\"{}\"}}", "ü€𐍈x".repeat(300_000));
    let strange = ["{\"type\":\"abide.unheard_of\",\"n\":[1,{\"two\":null}]}", "plain words, no JSON", &huge];
    let mut mixed = story.clone();
    mixed.stdout = strange.iter().flat_map(|line| line.bytes().chain([b'\n'])).collect();
    mixed.stdout.extend_from_slice(&story.stdout);
    mixed.name = format!("{} among strange lines", story.name);
    let said = mixed.play(engine);
    sound(&said, &mixed.name);
    // A sticky process uses a protocol, independently of the format of one-shot output.
    let speech = match story.kind {
        ProfileKind::Resumable => engine.speech(),
        ProfileKind::StickyProcess => OutputFormat::Lines,
    };
    let ending = |facts: &[EngineFact]| -> Vec<_> {
        let ends = facts.iter().filter(|said| matches!(said.what, FactKind::Ended { .. }));
        ends.map(|said| said.what.clone()).collect()
    };
    match speech {
        OutputFormat::Lines => {
            assert_eq!(ending(&said), ending(facts), "{}: the end is the same", mixed.name)
        }
        // In prose output the unknown lines are part of the answer, so only the kinds of the facts are compared.
        OutputFormat::Prose => {
            let kinds = |facts: &[EngineFact]| -> Vec<_> {
                let ends = facts.iter().map(|said| {
                    if let FactKind::Ended { ending, .. } = &said.what {
                        Some(std::mem::discriminant(ending))
                    } else {
                        None
                    }
                });
                ends.flatten().collect()
            };
            assert_eq!(kinds(&said), kinds(facts), "{}: the end is of the same kind", mixed.name);
        }
    }
    for line in strange {
        let kept = said.iter().any(|said| match speech {
            OutputFormat::Lines => matches!(&said.what, FactKind::Unknown(whole) if whole == line),
            OutputFormat::Prose => matches!(&said.what, FactKind::Text(whole) if whole == line),
        });
        assert!(kept, "{}: a line of {} bytes is kept whole", mixed.name, line.len());
    }
}

pub(super) fn empty_output_is_no_success(engine: &dyn Engine) {
    for exit in [ExitStatus::Code(0), ExitStatus::Code(1), ExitStatus::Code(137), ExitStatus::Unseen] {
        let mut silent = RecordedProcess::new("nothing is printed", b"");
        silent.exit = exit;
        no_success(engine, &silent);
    }
}

pub(super) fn garbage_is_survived_and_is_no_success(engine: &dyn Engine) {
    let mut dice = SeededRng::new(4870);
    for round in 0..40 {
        let size = dice.below(6_000);
        let mut bytes: Vec<u8> = (0..size).map(|_| dice.below(256) as u8).collect();
        if round % 2 == 0 {
            // A line that begins like a protocol message but is not valid.
            bytes.splice(
                0..0,
                *b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[[[\n{\"type\":\"result\"}\n{\"type\":7}\n",
            );
        }
        no_success(engine, &RecordedProcess::new(&format!("garbage {round}"), &bytes));
    }
}

fn no_success(engine: &dyn Engine, story: &RecordedProcess) {
    let facts = story.play(engine);
    sound(&facts, &story.name);
    for said in facts {
        if let FactKind::Ended { ending, .. } = said.what {
            let failed = matches!(ending, TurnOutcome::Failed { .. });
            assert!(failed, "{}: {}: {ending:?} is no failure", engine.name(), story.name);
        }
    }
}
