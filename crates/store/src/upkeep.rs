//! Whether the tables are what the journal adds up to, and how to make them so again. The same for every store.
//!
//! Memory stays bounded by the largest single run: the journal is read in pages and the tables run by run.

use abide_domain::id::RunId;
use abide_ports::store::{JournalMismatch, JournalSeq, RunTables, Store, StoreError, StoreFlaw};

/// How many entries or runs are read at once.
const PAGE: usize = 500;
/// How many findings are kept in words; the others are only counted.
const MOST_FINDINGS: usize = 100;
/// How often a run that keeps changing under our eyes is looked at again.
const PATIENCE: usize = 20;

/// What was found.
#[derive(Debug, Default)]
pub struct VerificationReport {
    /// How many entries the journal has.
    pub entries: u64,
    /// How many runs were compared.
    pub runs: u64,
    /// What is wrong, as far as it is kept.
    pub findings: Vec<VerificationFinding>,
    /// How many more things are wrong.
    pub further_findings: u64,
    /// What is not wrong, but worth knowing.
    pub notes: Vec<String>,
}

/// Something that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum VerificationFinding {
    /// The journal skips or repeats a position.
    #[error("the journal has entry {found} where {expected} is due")]
    Sequence {
        /// What should be there.
        expected: u64,
        /// What is.
        found: u64,
    },
    /// The journal ends before the position that the store says is its last.
    #[error("the journal ends at {found}, but its head is {expected}")]
    Short {
        /// Where it should end.
        expected: u64,
        /// Where it does.
        found: u64,
    },
    /// Something cannot be read as it was written.
    #[error("{what}")]
    Damaged {
        /// What.
        what: String,
    },
    /// The tables are not what the journal adds up to.
    #[error(transparent)]
    Difference(JournalMismatch),
    /// The store as a whole is not what it must be.
    #[error(transparent)]
    Flaw(StoreFlaw),
}

/// How far the work has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerificationProgress {
    /// Entries read, of about so many.
    Entries(u64, u64),
    /// Runs compared or rebuilt.
    Runs(u64),
}

impl VerificationReport {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn finds(&mut self, finding: VerificationFinding) {
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        } else {
            self.further_findings += 1;
        }
    }
}

/// Reads everything and says what is wrong. Others may go on writing meanwhile; runs that they begin are not looked at,
/// or a store in which runs are begun faster than they are compared would never be done.
pub async fn verify(
    store: &dyn Store,
    mut progress: impl FnMut(VerificationProgress) + Send,
) -> Result<VerificationReport, StoreError> {
    let mut verification = VerificationReport::default();
    let flaws = match store.inspect().await {
        Ok(flaws) => flaws,
        Err(StoreError::Damaged { what }) => vec![StoreFlaw::Journal { what }],
        Err(other) => return Err(other),
    };
    for flaw in flaws {
        match flaw {
            StoreFlaw::Note { what } => verification.notes.push(what),
            StoreFlaw::Lost { .. } | StoreFlaw::Journal { .. } | StoreFlaw::Derived { .. } => {
                verification.finds(VerificationFinding::Flaw(flaw));
            }
        }
    }
    walk_journal(store, &mut verification, &mut progress).await?;
    let mut known: Vec<RunId> = Vec::new();
    loop {
        let runs = store.known_runs(known.last().copied(), PAGE).await?;
        if runs.is_empty() {
            break;
        }
        known.extend(runs);
    }
    for page in known.chunks(PAGE) {
        for run in page {
            if let Some(finding) = compare(store, *run).await? {
                verification.finds(finding);
            }
            verification.runs += 1;
        }
        progress(VerificationProgress::Runs(verification.runs));
    }
    Ok(verification)
}

/// Derives all tables from the journal anew and says how many runs there are. Nobody else may write meanwhile.
/// A journal that is itself damaged is left alone, and so are the tables of every run from there on.
pub async fn rebuild(
    store: &dyn Store,
    mut progress: impl FnMut(VerificationProgress) + Send,
) -> Result<u64, StoreError> {
    store.reindex().await?;
    let (mut rebuilt, mut last) = (0, None);
    loop {
        let runs = store.known_runs(last, PAGE).await?;
        let Some(end) = runs.last().copied() else { return Ok(rebuilt) };
        for run in runs {
            let mut derived = DerivedTables::default();
            if let Some(difference) = derived.catch_up(store, run).await? {
                return Err(StoreError::Damaged { what: difference.to_string() });
            }
            store.replace_tables(run, derived.tables).await?;
            rebuilt += 1;
        }
        progress(VerificationProgress::Runs(rebuilt));
        last = Some(end);
    }
}

/// The whole journal, for gaps and damage.
async fn walk_journal(
    store: &dyn Store,
    verification: &mut VerificationReport,
    progress: &mut (impl FnMut(VerificationProgress) + Send),
) -> Result<(), StoreError> {
    let head = store.head().await?;
    let (mut at, mut size) = (JournalSeq(0), PAGE);
    while at < head {
        let entries = match store.entries(at, size).await {
            Ok(entries) => entries,
            // Which one it is, and whether those around it are whole, is found out one by one.
            Err(StoreError::Damaged { .. }) if size > 1 => {
                size = 1;
                continue;
            }
            Err(StoreError::Damaged { what }) => {
                verification.finds(VerificationFinding::Damaged { what });
                at = JournalSeq(at.0 + 1);
                continue;
            }
            Err(other) => return Err(other),
        };
        if entries.is_empty() {
            verification.finds(VerificationFinding::Short { expected: head.0, found: at.0 });
            return Ok(());
        }
        for entry in entries {
            if entry.seq.0 != at.0 + 1 {
                verification.finds(VerificationFinding::Sequence { expected: at.0 + 1, found: entry.seq.0 });
            }
            at = entry.seq;
            verification.entries += 1;
        }
        progress(VerificationProgress::Entries(verification.entries, head.0));
    }
    Ok(())
}

/// One run. If it changes while it is looked at, it is looked at again.
async fn compare(store: &dyn Store, run: RunId) -> Result<Option<VerificationFinding>, StoreError> {
    let mut derived = DerivedTables::default();
    for _ in 0..PATIENCE {
        match derived.catch_up(store, run).await {
            Ok(None) => {}
            Ok(Some(difference)) => return Ok(Some(VerificationFinding::Difference(difference))),
            Err(StoreError::Damaged { what }) => return Ok(Some(VerificationFinding::Damaged { what })),
            Err(other) => return Err(other),
        }
        let kept = match store.tables_of(run).await {
            Ok(kept) => kept,
            Err(StoreError::Damaged { what }) => return Ok(Some(VerificationFinding::Damaged { what })),
            Err(other) => return Err(other),
        };
        let tables = derived.tables.differing(&kept);
        if tables.is_empty() {
            return Ok(None);
        }
        if store.entries_of(run, derived.last, 1).await.is_ok_and(|more| more.is_empty()) {
            return Ok(Some(VerificationFinding::Difference(JournalMismatch::Rows { run_id: run, tables })));
        }
    }
    Err(StoreError::Unavailable { reason: format!("run {run} changes too fast to be compared") })
}

/// What a run's entries add up to, so far.
#[derive(Default)]
struct DerivedTables {
    tables: RunTables,
    last: JournalSeq,
}

impl DerivedTables {
    async fn catch_up(
        &mut self,
        store: &dyn Store,
        run: RunId,
    ) -> Result<Option<JournalMismatch>, StoreError> {
        loop {
            let entries = store.entries_of(run, self.last, PAGE).await?;
            let Some(end) = entries.last() else { return Ok(None) };
            let end = end.seq;
            for entry in &entries {
                if let Err(difference) = self.tables.follow(entry) {
                    return Ok(Some(difference));
                }
            }
            self.last = end;
        }
    }
}
