//! Kills at any moment and full disks at any write: acknowledged commits are present exactly once, and the next start
//! succeeds.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use abide_ports::store::{Journal, JournalSeq, StoreError};
use abide_store::{
    sqlite::{SqliteOptions, SqliteStore},
    verification,
};
use abide_testkit::{history::HistoryGenerator, seeded_rng::SeededRng, skip::skip};

const WRITERS: u16 = 8;
const COMMITS: usize = 60;

/// The acknowledged commits: the last position of each, by writer and number.
type AcknowledgedCommits = BTreeMap<(u16, usize), u64>;

#[tokio::test]
async fn after_kill_9_everything_acknowledged_is_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let mut dice = SeededRng::new(9);
    for round in 0..12 {
        let mut child = committer(&path, round);
        let line_count = dice.below(300);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut printed_lines: Vec<String> = lines.by_ref().take(line_count).map(Result::unwrap).collect();
        // At the moment of the last line, other writers are in the middle of their commits.
        child.kill().unwrap();
        child.wait().unwrap();
        printed_lines.extend(lines.map_while(Result::ok));
        check(&path, round, &acknowledged(&printed_lines)).await;
    }
}

#[tokio::test]
async fn a_write_that_fails_anywhere_loses_nothing_acknowledged() {
    // The file size limit makes every write beyond it fail. Each limit is tried in turn.
    for blocks in (1..2400).step_by(97) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abide.db");
        let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
        let mut child =
            spawn("sh", &["-c", &limited, "sh", executable().to_str().unwrap(), &url(&path), "1", "8", "60"]);
        let mut output = String::new();
        child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        child.wait().unwrap();
        let output: Vec<_> = output.lines().map(str::to_owned).collect();
        assert!(!output.is_empty(), "the committer printed nothing");
        for line in output.iter().filter(|line| line.starts_with("error")) {
            let is_expected =
                ["not available", "is full", "unknown"].iter().any(|words| line.contains(words));
            assert!(is_expected, "{line}");
        }
        check(&path, 1, &acknowledged(&output)).await;
    }
}

#[tokio::test]
async fn a_database_that_is_full_says_so_and_loses_nothing() {
    let mut filled = 0;
    for pages in 1..90 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abide.db");
        let mut options = SqliteOptions::default();
        options.max_pages = Some(pages);
        let mut acknowledged = AcknowledgedCommits::new();
        match SqliteStore::open_with(&path, &options) {
            Ok(store) => {
                for (count, commit) in HistoryGenerator::new(5, 500).commits(COMMITS).into_iter().enumerate()
                {
                    match store.commit(commit).await {
                        Ok(committed) => drop(acknowledged.insert((0, count), committed.last.0)),
                        Err(StoreError::Full { .. }) => {
                            filled += 1;
                            break;
                        }
                        Err(other) => panic!("{pages} pages: {other}"),
                    }
                }
            }
            Err(StoreError::Full { .. }) => {}
            Err(other) => panic!("{pages} pages: {other}"),
        }
        check(&path, 5, &acknowledged).await;
    }
    assert!(filled > 20, "the bound was met while writing, not only while opening");
}

#[tokio::test]
async fn when_there_is_room_again_the_store_continues() {
    let folder = tempfile::tempdir().unwrap();
    let mounted =
        spawn("mount", &["-t", "tmpfs", "-o", "size=24m", "tmpfs", folder.path().to_str().unwrap()])
            .wait()
            .is_ok_and(|status| status.success());
    if !mounted {
        return skip("no file system can be mounted here (needs root)");
    }
    let path = folder.path().join("abide.db");
    let outcome = tokio::spawn(async move { fill_and_empty(&path).await }).await;
    assert!(spawn("umount", &["-l", folder.path().to_str().unwrap()]).wait().unwrap().success());
    outcome.unwrap();
}

async fn fill_and_empty(path: &Path) {
    let store = SqliteStore::open(path).unwrap();
    let ballast = path.with_file_name("ballast");
    let mut commits = HistoryGenerator::new(6, 600).commits(400).into_iter().enumerate();
    let mut acknowledged = AcknowledgedCommits::new();
    for (count, commit) in commits.by_ref().take(10) {
        acknowledged.insert((0, count), store.commit(commit).await.unwrap().last.0);
    }
    let mut refused = 0;
    for (count, commit) in commits {
        if count % 40 == 0 {
            // Fills the rest of the disk. The write fails when the disk is full.
            let _ = fs::write(&ballast, vec![0; 24 << 20]);
        }
        // A refused commit can be retried unchanged, because it has written nothing.
        loop {
            match store.commit(commit.clone()).await {
                Ok(committed) => {
                    acknowledged.insert((0, count), committed.last.0);
                    break;
                }
                Err(StoreError::Full { .. }) => {
                    refused += 1;
                    fs::remove_file(&ballast).expect("there is ballast to throw off");
                }
                Err(other) => panic!("{other}"),
            }
        }
        if acknowledged.len() > 300 {
            break;
        }
    }
    assert!(refused > 2, "it was full again and again");
    drop(store);
    let _ = fs::remove_file(&ballast);
    check(path, 6, &acknowledged).await;
}

/// Opens the database again and compares it with the acknowledged commits.
async fn check(path: &Path, seed: u64, acknowledged: &AcknowledgedCommits) {
    let store = SqliteStore::open(path).expect("the next start works");
    let verification = verification::verify(&store, |_| {}).await.unwrap();
    assert!(verification.is_clean(), "{:?}", verification.findings);
    let entries = store.entries(JournalSeq(0), usize::MAX).await.unwrap();
    assert_eq!(verification.entries, entries.len() as u64);
    for writer in 0..WRITERS {
        let mut author = HistoryGenerator::new(seed, seed as u16 * 100 + writer);
        for (count, commit) in author.commits(COMMITS).iter().enumerate() {
            let Some(last) = acknowledged.get(&(writer, count)) else { continue };
            let expected = commit.changes.last().unwrap();
            let entry = &entries[*last as usize - 1];
            assert_eq!((&entry.event, entry.revision), (&expected.event, expected.run.revision));
            let times =
                entries.iter().filter(|it| (it.run_id, it.revision) == (entry.run_id, entry.revision));
            assert_eq!(times.count(), 1, "none twice");
        }
    }
    let commit = HistoryGenerator::new(seed, 60_000 + seed as u16).commit();
    store.commit(commit).await.expect("it continues");
}

fn acknowledged(lines: &[String]) -> AcknowledgedCommits {
    let mut acknowledged = AcknowledgedCommits::new();
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        if let ["ack", writer, count, seq] = words[..] {
            let key = (writer.parse().unwrap(), count.parse().unwrap());
            acknowledged.insert(key, seq.parse().unwrap());
        }
    }
    acknowledged
}

fn committer(path: &Path, seed: u64) -> Child {
    let numbers = [seed.to_string(), WRITERS.to_string(), COMMITS.to_string()];
    spawn(executable().to_str().unwrap(), &[&url(path), &numbers[0], &numbers[1], &numbers[2]])
}

#[expect(clippy::disallowed_methods, reason = "a test of a crash needs a process that is killed")]
fn spawn(program: &str, arguments: &[&str]) -> Child {
    let child = Command::new(program).args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    child.unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Examples are built next to the tests.
fn executable() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let committer = test.parent().unwrap().with_file_name("examples").join("committer");
    assert!(committer.exists(), "`cargo build -p abide-store --examples` makes {}", committer.display());
    committer
}

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}
