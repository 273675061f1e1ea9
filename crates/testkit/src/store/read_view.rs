//! The results of all queries of a store. Two stores with equal results are indistinguishable.

use std::collections::BTreeMap;

use abide_domain::{
    deadline::Deadline,
    delivery::Delivery,
    effect::PendingEffect,
    id::RunId,
    inbound::Inbound,
    interaction::Interaction,
    run::{Run, RunStatus},
    slots::SlotOccupancy,
    time::Timestamp,
    turn::Turn,
};
use abide_ports::store::{
    ClaimHolder, JournalEntry, JournalSeq, ListPage, PageRequest, RunTables, Store, StoreFuture,
};

/// The results of all queries of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestStoreView {
    head: JournalSeq,
    entries: Vec<JournalEntry>,
    runs: Vec<Run>,
    by_status: BTreeMap<RunStatus, Vec<RunId>>,
    due: Vec<(RunId, Deadline)>,
    occupying: Vec<(RunId, SlotOccupancy)>,
    inbox: Vec<Interaction>,
    pending_effects: Vec<(RunId, PendingEffect)>,
    undelivered: BTreeMap<String, Vec<RunId>>,
    run_ids: Vec<RunId>,
    claims: BTreeMap<(String, String), Option<ClaimHolder>>,
    of_run: BTreeMap<RunId, TestRunView>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TestRunView {
    entries: Vec<JournalSeq>,
    run: Option<Run>,
    turns: Vec<Turn>,
    interactions: Vec<Interaction>,
    deliveries: Vec<Delivery>,
    inbound: Vec<Inbound>,
    tables: RunTables,
}

const STATUSES: [RunStatus; 7] = [
    RunStatus::Queued,
    RunStatus::Running,
    RunStatus::WaitingUser,
    RunStatus::Idle,
    RunStatus::Succeeded,
    RunStatus::Failed,
    RunStatus::Canceled,
];

/// Runs all queries with small pages.
pub async fn read_view(store: &dyn Store) -> TestStoreView {
    let mut run_ids = Vec::new();
    loop {
        let page = store.known_runs(run_ids.last().copied(), 3).await.expect("known_runs answers");
        if page.is_empty() {
            break;
        }
        run_ids.extend(page);
    }
    let mut pending: Vec<(RunId, PendingEffect)> = Vec::new();
    loop {
        let after = pending.last().map(|(run, pending)| (*run, pending.number));
        let page = store.pending_effects(after, 3).await.expect("owed answers");
        if page.is_empty() {
            break;
        }
        pending.extend(page);
    }
    let mut by_status = BTreeMap::new();
    for status in STATUSES {
        let runs = pages(|page| store.runs(Some(status), page)).await;
        by_status.insert(status, runs.into_iter().map(|run| run.run_id).collect());
    }
    let (mut of_run, mut claims, mut undelivered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for &run in &run_ids {
        let of = read_run_view(store, run).await;
        for claim in &of.tables.claims {
            let name = (claim.scope.clone(), claim.key.clone());
            claims.insert(name, store.claim_holder(&claim.scope, &claim.key).await.expect("claimed answers"));
        }
        for delivery in &of.deliveries {
            let conversation = &delivery.conversation_ref;
            let runs = store.undelivered_to(conversation).await.expect("undelivered_to answers");
            undelivered.insert(conversation.clone(), runs);
        }
        of_run.insert(run, of);
    }
    TestStoreView {
        head: store.head().await.expect("head answers"),
        entries: entries(store).await,
        runs: pages(|page| store.runs(None, page)).await,
        by_status,
        due: store.runs_due(Timestamp(i64::MAX), usize::MAX).await.expect("due answers"),
        occupying: store.slot_occupancies().await.expect("occupying answers"),
        inbox: pages(|page| store.open_interactions(page)).await,
        pending_effects: pending,
        undelivered,
        run_ids,
        claims,
        of_run,
    }
}

/// Checks that two stores give the same results.
pub async fn assert_equal(left: &dyn Store, right: &dyn Store) {
    let (left, right) = (read_view(left).await, read_view(right).await);
    // Compared part by part, so that a difference is short enough to read.
    assert_eq!(left.entries, right.entries);
    assert_eq!(left.runs, right.runs);
    assert_eq!(left.of_run, right.of_run);
    assert_eq!(left, right);
}

async fn read_run_view(store: &dyn Store, run: RunId) -> TestRunView {
    let turns = pages(|page| store.turns_of(run, page)).await;
    let interactions = pages(|page| store.interactions_of(run, page)).await;
    let deliveries = pages(|page| store.deliveries_of(run, page)).await;
    let tables = store.tables_of(run).await.expect("tables_of answers");
    // Each row can also be read by its id.
    for turn in &turns {
        assert_eq!(store.turn(turn.turn_id).await.expect("turn answers").as_ref(), Some(turn));
    }
    for question in &interactions {
        let interaction = store.interaction(question.interaction_id).await.expect("interaction answers");
        let with_run = store.interaction_with_run(question.interaction_id).await.expect("it answers");
        let (again, run) = with_run.expect("the question has a run");
        assert_eq!((Some(&again), run.run_id), (interaction.as_ref(), question.run_id));
        assert_eq!(store.run(question.run_id).await.expect("run answers"), Some(run));
        assert_eq!(interaction.as_ref(), Some(question));
    }
    for delivery in &deliveries {
        let stored = store.delivery(delivery.delivery_id).await.expect("delivery answers");
        assert_eq!(stored.as_ref(), Some(delivery));
    }
    let mut inbound = Vec::new();
    for key in tables.inbound.keys() {
        inbound.extend(store.inbound(key.clone()).await.expect("inbound answers"));
    }
    let (mut seqs, mut after) = (Vec::new(), JournalSeq(0));
    loop {
        let page = store.entries_of(run, after, 4).await.expect("entries_of answers");
        let Some(last) = page.last() else { break };
        assert!(page.iter().all(|entry| entry.run_id == run));
        after = last.seq;
        seqs.extend(page.iter().map(|entry| entry.seq));
    }
    let run = store.run(run).await.expect("run answers");
    TestRunView { entries: seqs, run, turns, interactions, deliveries, inbound, tables }
}

async fn entries(store: &dyn Store) -> Vec<JournalEntry> {
    let (mut entries, mut after) = (Vec::new(), JournalSeq(0));
    loop {
        let page = store.entries(after, 50).await.expect("entries answers");
        let Some(last) = page.last() else { return entries };
        after = last.seq;
        entries.extend(page);
    }
}

/// Reads a whole list, two items per page.
pub(super) async fn pages<'a, T>(ask: impl Fn(PageRequest) -> StoreFuture<'a, ListPage<T>>) -> Vec<T> {
    pages_of(PageRequest::first(2), ask).await
}

/// Reads a whole list with pages of a given size.
pub(super) async fn pages_of<'a, T>(
    size: PageRequest,
    ask: impl Fn(PageRequest) -> StoreFuture<'a, ListPage<T>>,
) -> Vec<T> {
    let (mut items, mut cursor) = (Vec::new(), None);
    loop {
        let listing = ask(PageRequest { cursor, ..size.clone() }).await.expect("a page of a list");
        assert!(listing.items.len() <= size.limit, "no more than asked for");
        assert!(listing.next_cursor.is_none() || !listing.items.is_empty(), "a cursor leads on");
        items.extend(listing.items);
        cursor = listing.next_cursor;
        if cursor.is_none() {
            return items;
        }
    }
}
