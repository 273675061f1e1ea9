//! A store in memory, for tests and the simulator. Its contents are lost with the process. Crashes at commits can be
//! simulated.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use abide_domain::{
    deadline::Deadline,
    delivery::{Delivery, DeliveryStatus},
    effect::{EffectNumber, PendingEffect},
    event::KeyClaim,
    id::{DeliveryId, InteractionId, RunId, TurnId},
    inbound::{Inbound, MessageKey},
    interaction::Interaction,
    run::{Run, RunStatus},
    slots::SlotOccupancy,
    time::Timestamp,
    turn::Turn,
};
use abide_ports::store::{
    ClaimHolder, CommitReceipt, Journal, JournalCommit, JournalEntry, JournalPage, JournalPageRequest,
    JournalSeq, ListPage, PageRequest, RunChange, RunTables, StoreError, StoreFuture, StoreMaintenance,
    StoreQueries,
};
use serde::Serialize;

use crate::cursor::position;

/// A store whose contents live as long as the value.
#[derive(Debug, Default)]
pub struct MemoryStore {
    contents: Mutex<MemoryState>,
}

/// The point at which a simulated crash interrupts a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The commit fails before anything is written.
    BeforeWrite,
    /// Everything is written, but the caller receives no acknowledgement.
    AfterWrite,
}

#[derive(Clone, Debug, Default)]
struct MemoryState {
    crash: Option<CrashPoint>,
    journal: Vec<JournalEntry>,
    tables: BTreeMap<RunId, RunTables>,
    claims: BTreeMap<(String, String), ClaimHolder>,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    /// Simulates a crash at this point of the next commit.
    pub fn crash_at(&self, point: CrashPoint) {
        self.contents().crash = Some(point);
    }

    /// Whether a simulated crash is still pending.
    pub fn has_pending_crash(&self) -> bool {
        self.contents().crash.is_some()
    }

    /// A store with the same contents, like a restored backup.
    pub fn copy(&self) -> Self {
        Self { contents: Mutex::new(self.contents().clone()) }
    }

    /// Locks the contents. A panicked writer has not applied its commit, so lock poisoning is ignored.
    fn contents(&self) -> MutexGuard<'_, MemoryState> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&MemoryState) -> Result<T, StoreError>,
    ) -> StoreFuture<'_, T> {
        let answer = read(&self.contents());
        Box::pin(async move { answer })
    }

    /// Rows of one kind, of all runs, in key order.
    fn page<Id: FromStr + Ord + fmt::Display, T: Clone + Serialize + Send + 'static>(
        &self,
        page: &PageRequest,
        rows: impl FnOnce(&MemoryState) -> Vec<(Id, T)>,
    ) -> StoreFuture<'_, ListPage<T>> {
        let cursor = position::<Id>(page);
        self.read(|contents| {
            let cursor = cursor?;
            let after = |(id, _): &(Id, T)| cursor.as_ref().is_none_or(|cursor| id > cursor);
            let rest = rows(contents).into_iter().filter(after);
            Ok(page_of_rows(rest, page))
        })
    }
}

/// The rows that fit into the page. Bytes are counted in the encoding of a database.
fn page_of_rows<Id: fmt::Display, T: Serialize>(
    rows: impl Iterator<Item = (Id, T)>,
    page: &PageRequest,
) -> ListPage<T> {
    let (mut items, mut last, mut bytes) = (Vec::new(), None, 0_usize);
    for (id, row) in rows {
        if items.len() == page.limit || (bytes >= page.max_bytes && !items.is_empty()) {
            return ListPage { items, next_cursor: last };
        }
        if page.max_bytes < usize::MAX {
            bytes = bytes.saturating_add(serde_json::to_vec(&row).map_or(0, |body| body.len()));
        }
        items.push(row);
        last = Some(id.to_string());
    }
    ListPage { items, next_cursor: None }
}

impl MemoryState {
    /// Checks a whole commit before any row is written.
    fn check(&self, commit: &JournalCommit) -> Result<(), StoreError> {
        let mut revisions: BTreeMap<RunId, u64> = BTreeMap::new();
        let mut claimed: BTreeMap<(String, String), ClaimHolder> = BTreeMap::new();
        for RunChange { run, event, .. } in &commit.changes {
            let run_id = run.run_id;
            let stored = || self.run(run_id).map_or(0, |run| run.revision);
            let found = *revisions.entry(run_id).or_insert_with(stored);
            let expected = run.revision - 1;
            if found != expected {
                return Err(StoreError::Conflict { run_id, expected, found });
            }
            revisions.insert(run_id, run.revision);
            for KeyClaim { scope, key, fingerprint } in event.claims() {
                let name = (scope, key);
                if let Some(holder) = self.claims.get(&name).or_else(|| claimed.get(&name)).cloned() {
                    return Err(StoreError::KeyTaken { scope: name.0, key: name.1, holder });
                }
                claimed.insert(name, ClaimHolder { run_id, fingerprint });
            }
        }
        Ok(())
    }

    fn write(&mut self, commit: JournalCommit) -> CommitReceipt {
        for change in commit.changes {
            let run_id = change.run.run_id;
            for KeyClaim { scope, key, fingerprint } in change.claims() {
                self.claims.insert((scope, key), ClaimHolder { run_id, fingerprint });
            }
            self.journal.push(JournalEntry {
                seq: JournalSeq(self.journal.len() as u64 + 1),
                run_id,
                revision: change.run.revision,
                stamp: change.stamp,
                event: change.event.clone(),
            });
            self.tables.entry(run_id).or_default().apply_change(change);
        }
        CommitReceipt { last: self.head() }
    }

    fn head(&self) -> JournalSeq {
        JournalSeq(self.journal.len() as u64)
    }

    fn run(&self, id: RunId) -> Option<&Run> {
        self.tables.get(&id)?.run.as_ref()
    }

    fn runs(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.tables.values().filter_map(|tables| tables.run.as_ref())
    }
}

impl Journal for MemoryStore {
    fn commit(&self, commit: JournalCommit) -> StoreFuture<'_, CommitReceipt> {
        let mut contents = self.contents();
        let committed = match (contents.check(&commit), contents.crash.take()) {
            (Err(error), _) => Err(error),
            (Ok(()), None) => Ok(contents.write(commit)),
            (Ok(()), Some(CrashPoint::BeforeWrite)) => {
                Err(StoreError::Unavailable { reason: "simulated crash before the write".to_owned() })
            }
            (Ok(()), Some(CrashPoint::AfterWrite)) => {
                contents.write(commit);
                Err(StoreError::OutcomeUnknown { reason: "simulated crash after the write".to_owned() })
            }
        };
        Box::pin(async move { committed })
    }

    fn entries(&self, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        let skipped = usize::try_from(after.0).unwrap_or(usize::MAX);
        self.read(|contents| Ok(contents.journal.iter().skip(skipped).take(limit).cloned().collect()))
    }

    fn entries_of(&self, run: RunId, after: JournalSeq, limit: usize) -> StoreFuture<'_, Vec<JournalEntry>> {
        self.read(|contents| {
            let of_run = contents.journal.iter().filter(|entry| entry.run_id == run && entry.seq > after);
            Ok(of_run.take(limit).cloned().collect())
        })
    }

    fn journal_page(&self, request: JournalPageRequest) -> StoreFuture<'_, JournalPage> {
        let JournalPageRequest { run, after, limit, max_bytes } = request;
        self.read(|contents| {
            let skipped = usize::try_from(after.0).unwrap_or(usize::MAX);
            let is_wanted = |entry: &&JournalEntry| run.is_none_or(|run| run == entry.run_id);
            let (mut entries, mut bytes) = (Vec::new(), 0_usize);
            for entry in contents.journal.iter().skip(skipped).filter(is_wanted) {
                if entries.len() == limit || (bytes >= max_bytes && !entries.is_empty()) {
                    return Ok(JournalPage { entries, has_more: true });
                }
                let event = serde_json::to_vec(&entry.event).unwrap_or_default();
                bytes = bytes.saturating_add(event.len());
                entries.push(entry.clone());
            }
            Ok(JournalPage { entries, has_more: false })
        })
    }

    fn head(&self) -> StoreFuture<'_, JournalSeq> {
        self.read(|contents| Ok(contents.head()))
    }
}

impl StoreQueries for MemoryStore {
    fn run(&self, id: RunId) -> StoreFuture<'_, Option<Run>> {
        self.read(|contents| Ok(contents.run(id).cloned()))
    }

    fn runs(&self, status: Option<RunStatus>, page: PageRequest) -> StoreFuture<'_, ListPage<Run>> {
        let before = position::<RunId>(&page);
        self.read(|contents| {
            let before = before?;
            let matches = |run: &&Run| {
                status.is_none_or(|status| run.status() == status)
                    && before.is_none_or(|before| run.run_id < before)
            };
            let rest = contents.runs().rev().filter(matches).map(|run| (run.run_id, run.clone()));
            Ok(page_of_rows(rest, &page))
        })
    }

    fn runs_due(&self, until: Timestamp, limit: usize) -> StoreFuture<'_, Vec<(RunId, Deadline)>> {
        self.read(|contents| {
            let deadlines = contents.runs().filter_map(|run| Some((run.run_id, run.deadline()?)));
            let mut due: Vec<_> = deadlines.filter(|(_, deadline)| deadline.at <= until).collect();
            due.sort_by_key(|(run_id, deadline)| (deadline.at, *run_id));
            due.truncate(limit);
            Ok(due)
        })
    }

    fn slot_occupancies(&self) -> StoreFuture<'_, Vec<(RunId, SlotOccupancy)>> {
        self.read(|contents| {
            let occupancies = contents.runs().map(|run| (run.run_id, run.occupancy()));
            Ok(occupancies.filter(|(_, occupancy)| *occupancy != SlotOccupancy::None).collect())
        })
    }

    fn count_by_status(&self) -> StoreFuture<'_, BTreeMap<RunStatus, u64>> {
        self.read(|contents| {
            let mut tally = BTreeMap::new();
            for run in contents.runs() {
                *tally.entry(run.status()).or_default() += 1;
            }
            Ok(tally)
        })
    }

    fn turn(&self, id: TurnId) -> StoreFuture<'_, Option<Turn>> {
        self.read(|contents| Ok(contents.tables.values().find_map(|tables| tables.turns.get(&id)).cloned()))
    }

    fn turns_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Turn>> {
        self.page(&page, |contents| {
            let turns = contents.tables.get(&run).into_iter().flat_map(|tables| &tables.turns);
            turns.map(|(id, turn)| (*id, turn.clone())).collect()
        })
    }

    fn inbound(&self, key: MessageKey) -> StoreFuture<'_, Option<Inbound>> {
        self.read(|contents| {
            Ok(contents.tables.values().find_map(|tables| tables.inbound.get(&key)).cloned())
        })
    }

    fn interaction(&self, id: InteractionId) -> StoreFuture<'_, Option<Interaction>> {
        self.read(|contents| {
            Ok(contents.tables.values().find_map(|tables| tables.interactions.get(&id)).cloned())
        })
    }

    fn interaction_with_run(&self, id: InteractionId) -> StoreFuture<'_, Option<(Interaction, Run)>> {
        self.read(|contents| {
            let interaction = contents.tables.values().find_map(|tables| tables.interactions.get(&id));
            Ok(interaction.and_then(|it| Some((it.clone(), contents.run(it.run_id)?.clone()))))
        })
    }

    fn interactions_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.page(&page, |contents| {
            let questions = contents.tables.get(&run).into_iter().flat_map(|tables| &tables.interactions);
            questions.map(|(id, question)| (*id, question.clone())).collect()
        })
    }

    fn open_interactions(&self, page: PageRequest) -> StoreFuture<'_, ListPage<Interaction>> {
        self.page(&page, |contents| {
            let questions = contents.tables.values().flat_map(|tables| &tables.interactions);
            let open: BTreeMap<_, _> = questions.filter(|(_, question)| question.is_open()).collect();
            open.into_iter().map(|(id, question)| (*id, question.clone())).collect()
        })
    }

    fn count_open_interactions(&self) -> StoreFuture<'_, u64> {
        self.read(|contents| {
            let questions = contents.tables.values().flat_map(|tables| tables.interactions.values());
            Ok(questions.filter(|question| question.is_open()).count() as u64)
        })
    }

    fn delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        self.read(|contents| {
            Ok(contents.tables.values().find_map(|tables| tables.deliveries.get(&id)).cloned())
        })
    }

    fn deliveries_of(&self, run: RunId, page: PageRequest) -> StoreFuture<'_, ListPage<Delivery>> {
        self.page(&page, |contents| {
            let deliveries = contents.tables.get(&run).into_iter().flat_map(|tables| &tables.deliveries);
            deliveries.map(|(id, delivery)| (*id, delivery.clone())).collect()
        })
    }

    fn undelivered_to(&self, conversation_ref: &str) -> StoreFuture<'_, Vec<RunId>> {
        self.read(|contents| {
            let deliveries = contents.tables.values().flat_map(|tables| tables.deliveries.values());
            let waiting = deliveries.filter(|delivery| {
                delivery.conversation_ref == conversation_ref
                    && delivery.status == DeliveryStatus::DeliveryUnavailable
                    && !delivery.resent
            });
            let runs: BTreeSet<_> = waiting.map(|delivery| delivery.run_id).collect();
            Ok(runs.into_iter().collect())
        })
    }

    fn pending_effects(
        &self,
        after: Option<(RunId, EffectNumber)>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(RunId, PendingEffect)>> {
        self.read(|contents| {
            let effects = contents
                .runs()
                .flat_map(|run| run.pending_effects.iter().map(|pending| (run.run_id, pending.clone())));
            let later = |(run, pending): &(RunId, PendingEffect)| {
                after.is_none_or(|after| (*run, pending.number) > after)
            };
            Ok(effects.filter(later).take(limit).collect())
        })
    }

    fn claim_holder(&self, scope: &str, key: &str) -> StoreFuture<'_, Option<ClaimHolder>> {
        let name = (scope.to_owned(), key.to_owned());
        self.read(|contents| Ok(contents.claims.get(&name).cloned()))
    }
}

impl StoreMaintenance for MemoryStore {
    fn known_runs(&self, after: Option<RunId>, limit: usize) -> StoreFuture<'_, Vec<RunId>> {
        self.read(|contents| {
            let run_ids =
                contents.journal.iter().map(|entry| entry.run_id).chain(contents.tables.keys().copied());
            let run_ids: BTreeSet<_> = run_ids.filter(|run| after.is_none_or(|after| *run > after)).collect();
            Ok(run_ids.into_iter().take(limit).collect())
        })
    }

    fn tables_of(&self, run: RunId) -> StoreFuture<'_, RunTables> {
        self.read(|contents| Ok(contents.tables.get(&run).cloned().unwrap_or_default()))
    }

    fn replace_tables(&self, run: RunId, tables: RunTables) -> StoreFuture<'_, ()> {
        let mut contents = self.contents();
        contents.claims.retain(|_, claimed| claimed.run_id != run);
        for KeyClaim { scope, key, fingerprint } in tables.claims.clone() {
            contents.claims.insert((scope, key), ClaimHolder { run_id: run, fingerprint });
        }
        contents.tables.insert(run, tables);
        Box::pin(async { Ok(()) })
    }

    fn backup(&self, _to: &Path) -> StoreFuture<'_, ()> {
        let hint = "memory is not kept; use SQLite".to_owned();
        Box::pin(async { Err(StoreError::Unsupported { hint }) })
    }
}
