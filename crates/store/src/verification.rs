//! Verification and rebuilding of the tables from the journal, the same for all stores.
//!
//! Memory is bounded by the largest run: the journal is read in pages, and the tables run by run.

use abide_domain::id::RunId;
use abide_ports::store::{JournalMismatch, JournalSeq, RunTables, Store, StoreError, StoreFlaw};

/// The number of entries or runs per query.
const PAGE_ROWS: usize = 500;
/// The maximum number of described findings. Further findings are only counted.
const MAX_FINDINGS: usize = 100;
/// The maximum number of comparisons of a run that changes during the comparison.
const MAX_COMPARISONS_PER_RUN: usize = 20;

/// The result of a verification.
#[derive(Debug, Default)]
pub struct VerificationReport {
    /// The number of journal entries.
    pub entries: u64,
    /// The number of compared runs.
    pub runs: u64,
    /// The first findings, up to a limit.
    pub findings: Vec<VerificationFinding>,
    /// The number of findings beyond the limit.
    pub further_findings: u64,
    /// Information that is not a finding.
    pub notes: Vec<String>,
}

/// A defect of the store.
#[derive(Debug, thiserror::Error)]
pub enum VerificationFinding {
    /// The journal skips or repeats a position.
    #[error("the journal has entry {found} instead of entry {expected}")]
    SequenceGap { expected: u64, found: u64 },
    /// The journal ends before the position of its recorded head.
    #[error("the journal ends at {found}, but its head is {expected}")]
    JournalTruncated { expected: u64, found: u64 },
    /// An entry of the journal cannot be read. Only a backup has it.
    #[error("{detail}")]
    DamagedEntry { detail: String },
    /// A row of a table cannot be read. It can be derived from the journal again.
    #[error("{detail}")]
    DamagedRow { detail: String },
    /// The tables differ from those derived from the journal.
    #[error(transparent)]
    Difference(JournalMismatch),
    /// A flaw of the store as a whole.
    #[error(transparent)]
    Flaw(StoreFlaw),
}

/// The progress of a verification or rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerificationProgress {
    /// Entries read, and their approximate total.
    Entries(u64, u64),
    /// Runs compared or rebuilt.
    Runs(u64),
}

impl VerificationReport {
    /// Whether there are no findings.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add_finding(&mut self, finding: VerificationFinding) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        } else {
            self.further_findings += 1;
        }
    }
}

/// Verifies the whole store. Other processes may write at the same time. Runs that begin during the verification are
/// not compared; otherwise it might never end.
pub async fn verify(
    store: &dyn Store,
    mut progress: impl FnMut(VerificationProgress) + Send,
) -> Result<VerificationReport, StoreError> {
    let mut verification = VerificationReport::default();
    let flaws = match store.inspect().await {
        Ok(flaws) => flaws,
        Err(StoreError::Damaged { detail }) => vec![StoreFlaw::Journal { detail }],
        Err(other) => return Err(other),
    };
    for flaw in flaws {
        match flaw {
            StoreFlaw::Note { detail } => verification.notes.push(detail),
            StoreFlaw::InputLost { .. } | StoreFlaw::Journal { .. } | StoreFlaw::Derived { .. } => {
                verification.add_finding(VerificationFinding::Flaw(flaw));
            }
        }
    }
    walk_journal(store, &mut verification, &mut progress).await?;
    let mut run_ids: Vec<RunId> = Vec::new();
    loop {
        let runs = store.known_runs(run_ids.last().copied(), PAGE_ROWS).await?;
        if runs.is_empty() {
            break;
        }
        run_ids.extend(runs);
    }
    for page in run_ids.chunks(PAGE_ROWS) {
        for run in page {
            if let Some(finding) = compare_run(store, *run).await? {
                verification.add_finding(finding);
            }
            verification.runs += 1;
        }
        progress(VerificationProgress::Runs(verification.runs));
    }
    Ok(verification)
}

/// Rebuilds all tables from the journal, in the order of run ids, and returns the number of runs. No other process may
/// write at the same time. Fails at a run whose entries are damaged: neither the journal nor the tables of this and the
/// following runs are changed.
pub async fn rebuild(
    store: &dyn Store,
    mut progress: impl FnMut(VerificationProgress) + Send,
) -> Result<u64, StoreError> {
    store.reindex().await?;
    let (mut rebuilt, mut last) = (0, None);
    loop {
        let runs = store.known_runs(last, PAGE_ROWS).await?;
        let Some(end) = runs.last().copied() else { return Ok(rebuilt) };
        for run in runs {
            let mut derived = DerivedTables::default();
            if let Some(difference) = derived.catch_up(store, run).await? {
                return Err(StoreError::Damaged { detail: difference.to_string() });
            }
            store.replace_tables(run, derived.tables).await?;
            rebuilt += 1;
        }
        progress(VerificationProgress::Runs(rebuilt));
        last = Some(end);
    }
}

/// Reads the whole journal and reports gaps and damage.
async fn walk_journal(
    store: &dyn Store,
    verification: &mut VerificationReport,
    progress: &mut (impl FnMut(VerificationProgress) + Send),
) -> Result<(), StoreError> {
    let head = store.head().await?;
    let (mut at, mut size) = (JournalSeq(0), PAGE_ROWS);
    while at < head {
        let entries = match store.entries(at, size).await {
            Ok(entries) => entries,
            // The page is read again entry by entry, to find the damaged one.
            Err(StoreError::Damaged { .. }) if size > 1 => {
                size = 1;
                continue;
            }
            Err(StoreError::Damaged { detail }) => {
                verification.add_finding(VerificationFinding::DamagedEntry { detail });
                at = JournalSeq(at.0 + 1);
                continue;
            }
            Err(other) => return Err(other),
        };
        if entries.is_empty() {
            verification.add_finding(VerificationFinding::JournalTruncated { expected: head.0, found: at.0 });
            return Ok(());
        }
        for entry in entries {
            if entry.seq.0 != at.0 + 1 {
                verification
                    .add_finding(VerificationFinding::SequenceGap { expected: at.0 + 1, found: entry.seq.0 });
            }
            at = entry.seq;
            verification.entries += 1;
        }
        progress(VerificationProgress::Entries(verification.entries, head.0));
    }
    Ok(())
}

/// Compares one run. If it changes during the comparison, it is compared again.
async fn compare_run(store: &dyn Store, run: RunId) -> Result<Option<VerificationFinding>, StoreError> {
    let mut derived = DerivedTables::default();
    for _ in 0..MAX_COMPARISONS_PER_RUN {
        match derived.catch_up(store, run).await {
            Ok(None) => {}
            Ok(Some(difference)) => return Ok(Some(VerificationFinding::Difference(difference))),
            Err(StoreError::Damaged { detail }) => {
                return Ok(Some(VerificationFinding::DamagedEntry { detail }));
            }
            Err(other) => return Err(other),
        }
        let stored = match store.tables_of(run).await {
            Ok(stored) => stored,
            Err(StoreError::Damaged { detail }) => {
                return Ok(Some(VerificationFinding::DamagedRow { detail }));
            }
            Err(other) => return Err(other),
        };
        let tables = derived.tables.differing_tables(&stored);
        if tables.is_empty() {
            return Ok(None);
        }
        if store.entries_of(run, derived.last, 1).await.is_ok_and(|more| more.is_empty()) {
            return Ok(Some(VerificationFinding::Difference(JournalMismatch::Rows { run_id: run, tables })));
        }
    }
    Err(StoreError::Unavailable { reason: format!("run {run} changes too fast to be compared") })
}

/// The tables derived from a run's entries so far.
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
            let entries = store.entries_of(run, self.last, PAGE_ROWS).await?;
            let Some(end) = entries.last() else { return Ok(None) };
            let end = end.seq;
            for entry in &entries {
                if let Err(difference) = self.tables.apply_entry(entry) {
                    return Ok(Some(difference));
                }
            }
            self.last = end;
        }
    }
}
