//! Runs the conformance suite for each engine of the registry, with recordings of real programs.
//!
//! `transcripts/<engine>/<version>/<story>.jsonl` is the output of a program. `.stderr` and `.notes` beside it contain
//! its error output and the circumstances of the recording. `.expect` contains the facts that the adapter derives;
//! `UPDATE_EXPECT=1` writes it.

use std::{fs, path::Path};

use abide_engines::registry;
use abide_ports::engine::EngineInstallation;
use abide_testkit::engine::{RecordedProcess, check, format_facts};
use expect_test::expect_file;

#[test]
fn every_engine_of_the_registry_keeps_the_contract() {
    let configured = registry::acp("acp", EngineInstallation::for_program("some-agent"));
    for engine in registry::built_in().into_iter().chain([configured]) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts").join(engine.name());
        let mut stories = vec![];
        for version in sorted(&folder) {
            for file in sorted(&version)
                .into_iter()
                .filter(|file| file.extension().is_some_and(|kind| kind == "jsonl"))
            {
                let story = read(&file);
                expect_file![file.with_extension("expect")].assert_eq(&format_facts(&story.replay(&*engine)));
                stories.push(story);
            }
        }
        assert!(!stories.is_empty(), "{} has recorded stories in {}", engine.name(), folder.display());
        check(&*engine, &stories);
    }
}

fn read(file: &Path) -> RecordedProcess {
    let beside = |kind: &str| fs::read(file.with_extension(kind)).unwrap_or_default();
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut story = RecordedProcess::new(&name, &fs::read(file).expect("the listed transcript can be read"));
    story.stderr = beside("stderr");
    story.with_notes(&String::from_utf8(beside("notes")).expect("notes are text"))
}

fn sorted(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()).collect();
    entries.sort();
    entries
}
