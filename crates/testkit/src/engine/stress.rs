//! Output as it occurs in practice: split at any byte, truncated, unknown, very large or invalid.

use abide_domain::{engine::ProfileKind, event::TurnOutcome, process::ExitStatus};
use abide_ports::engine::{Engine, EngineFact, FactKind, OutputFormat};

use super::{check_facts, story::RecordedProcess};
use crate::seeded_rng::SeededRng;

pub(super) fn check_chunking(engine: &dyn Engine, recording: &RecordedProcess, facts: &[EngineFact]) {
    for size in [1, 2, 3, 7, 61, 1021, 8192] {
        assert_eq!(recording.replay_in_chunks(engine, size), facts, "{}: cut by {size}", recording.name);
    }
}

/// An interpreter restored from a checkpoint at any byte reports the same facts as one that read the whole output.
pub(super) fn check_restore(engine: &dyn Engine, recording: &RecordedProcess, facts: &[EngineFact]) {
    let length = recording.stdout.len();
    let step = (length / 61).max(1);
    for at in (0..length).step_by(step).chain([length]) {
        assert_eq!(recording.replay_restored(engine, at), facts, "{}: restored at byte {at}", recording.name);
    }
}

/// A process that is killed at any byte ends its turn exactly once, and successfully only if it had finished.
pub(super) fn check_kill_at_any_byte(engine: &dyn Engine, recording: &RecordedProcess) {
    let length = recording.stdout.len();
    let step = (length / 97).max(1);
    for at in (0..length).step_by(step) {
        let mut cut = recording.clone();
        cut.stdout.truncate(at);
        cut.exit = ExitStatus::Code(137);
        cut.name = format!("{} killed at byte {at}", recording.name);
        let facts = cut.replay(engine);
        check_facts(&facts, &cut.name);
    }
}

pub(super) fn check_unknown_lines(engine: &dyn Engine, recording: &RecordedProcess, facts: &[EngineFact]) {
    let huge = format!("{{\"type\":\"abide.unheard_of\",\"blob\":\"{}\"}}", "ü€𐍈x".repeat(300_000));
    let unusual = ["{\"type\":\"abide.unheard_of\",\"n\":[1,{\"two\":null}]}", "plain words, no JSON", &huge];
    let mut mixed = recording.clone();
    mixed.stdout = unusual.iter().flat_map(|line| line.bytes().chain([b'\n'])).collect();
    mixed.stdout.extend_from_slice(&recording.stdout);
    mixed.name = format!("{} among unusual lines", recording.name);
    let mixed_facts = mixed.replay(engine);
    check_facts(&mixed_facts, &mixed.name);
    // A sticky process uses a protocol, independently of the format of one-shot output.
    let speech = match recording.kind {
        ProfileKind::Resumable => engine.output_format(),
        ProfileKind::StickyProcess => OutputFormat::Lines,
    };
    let ending = |facts: &[EngineFact]| -> Vec<_> {
        let ends = facts.iter().filter(|mixed_facts| matches!(mixed_facts.kind, FactKind::TurnEnded { .. }));
        ends.map(|mixed_facts| mixed_facts.kind.clone()).collect()
    };
    match speech {
        OutputFormat::Lines => {
            assert_eq!(ending(&mixed_facts), ending(facts), "{}: the end is the same", mixed.name)
        }
        // In prose output the unknown lines are part of the answer, so only the kinds of the facts are compared.
        OutputFormat::PlainText => {
            let kinds = |facts: &[EngineFact]| -> Vec<_> {
                let ends = facts.iter().map(|mixed_facts| {
                    if let FactKind::TurnEnded { outcome: ending, .. } = &mixed_facts.kind {
                        Some(std::mem::discriminant(ending))
                    } else {
                        None
                    }
                });
                ends.flatten().collect()
            };
            assert_eq!(kinds(&mixed_facts), kinds(facts), "{}: the end is of the same kind", mixed.name);
        }
    }
    for line in unusual {
        let kept = mixed_facts.iter().any(|mixed_facts| match speech {
            OutputFormat::Lines => matches!(&mixed_facts.kind, FactKind::UnknownLine(whole) if whole == line),
            OutputFormat::PlainText => matches!(&mixed_facts.kind, FactKind::Text(whole) if whole == line),
        });
        assert!(kept, "{}: a line of {} bytes is kept whole", mixed.name, line.len());
    }
}

pub(super) fn check_empty_output(engine: &dyn Engine) {
    for exit in [ExitStatus::Code(0), ExitStatus::Code(1), ExitStatus::Code(137), ExitStatus::Unknown] {
        let mut silent = RecordedProcess::new("nothing is printed", b"");
        silent.exit = exit;
        assert_no_success(engine, &silent);
    }
}

pub(super) fn check_garbage(engine: &dyn Engine) {
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
        assert_no_success(engine, &RecordedProcess::new(&format!("garbage {round}"), &bytes));
    }
}

fn assert_no_success(engine: &dyn Engine, recording: &RecordedProcess) {
    let facts = recording.replay(engine);
    check_facts(&facts, &recording.name);
    for fact in facts {
        if let FactKind::TurnEnded { outcome: ending, .. } = fact.kind {
            let failed = matches!(ending, TurnOutcome::Failed { .. });
            assert!(failed, "{}: {}: {ending:?} is no failure", engine.name(), recording.name);
        }
    }
}
