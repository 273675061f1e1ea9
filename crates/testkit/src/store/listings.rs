//! Lists are complete and in the documented order, and refuse invalid cursors.

use std::collections::BTreeMap;

use abide_domain::{
    delivery::DeliveryStatus,
    effect::EffectNumber,
    id::{DeliveryId, IdSeed, InteractionId, RunId, TurnId},
    inbound::MessageKey,
    slots::SlotOccupancy,
    time::Timestamp,
};
use abide_ports::store::{
    JournalEntry, JournalPage, JournalPageRequest, JournalSeq, PageRequest, Store, StoreError,
    StoreInputError,
};

use super::{
    TestStoreProvider,
    read_view::{pages, pages_of},
    store_with_history,
};
use crate::history::HistoryGenerator;

/// Enough commits to give each table rows of each kind.
const COMMITS: usize = 320;

/// The first seed from 32 on whose history ends with a deadline. It changes with the rules of runs.
fn seed() -> u64 {
    let ends_with_a_deadline = |seed: &u64| {
        let mut generator = HistoryGenerator::new(*seed, 1).with_runs(12);
        generator.commits(COMMITS);
        generator.runs().values().any(|run| run.deadline().is_some())
    };
    (32..64).find(ends_with_a_deadline).expect("some story ends with a deadline")
}

pub(super) async fn check(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let (store, generator) = store_with_history(&*place, seed(), COMMITS).await;
    let store = &*store;
    runs(store, &generator).await;
    time_and_slots(store, &generator).await;
    rows(store, &generator).await;
    bytes(store, &generator).await;
    effects(store, &generator).await;
    unknown_names(store).await;
    bad_cursors(store).await;
}

async fn runs(store: &dyn Store, generator: &HistoryGenerator) {
    let newest_first: Vec<_> = generator.runs().values().rev().cloned().collect();
    assert_eq!(pages(|page| store.runs(None, page)).await, newest_first);
    for run in &newest_first {
        let status = run.status();
        let expected: Vec<_> = newest_first.iter().filter(|run| run.status() == status).cloned().collect();
        assert_eq!(pages(|page| store.runs(Some(status), page)).await, expected);
    }
    let mut tally = BTreeMap::new();
    for run in &newest_first {
        *tally.entry(run.status()).or_insert(0_u64) += 1;
    }
    assert_eq!(store.count_by_status().await.unwrap(), tally, "every run is counted once, under its status");
    let exact = store.runs(None, PageRequest::first(newest_first.len())).await.unwrap();
    assert_eq!(exact.next_cursor, None, "the last page says so, also when it is full");
    let none = store.runs(None, PageRequest::first(0)).await.unwrap();
    assert!(none.items.is_empty());
}

async fn time_and_slots(store: &dyn Store, generator: &HistoryGenerator) {
    let mut due: Vec<_> =
        generator.runs().values().filter_map(|run| Some((run.run_id, run.deadline()?))).collect();
    due.sort_by_key(|(run, deadline)| (deadline.at, *run));
    assert!(!due.is_empty(), "the story has deadlines");
    assert_eq!(store.runs_due(Timestamp(i64::MAX), 99).await.unwrap(), due, "the earliest first");
    assert_eq!(store.runs_due(due[0].1.at, 1).await.unwrap(), due[..1], "a deadline of now is due");
    assert_eq!(store.runs_due(Timestamp(due[0].1.at.0 - 1), 99).await.unwrap(), vec![]);
    let occupying: Vec<_> = generator.runs().values().map(|run| (run.run_id, run.occupancy())).collect();
    let occupying: Vec<_> = occupying.into_iter().filter(|(_, it)| *it != SlotOccupancy::None).collect();
    assert_eq!(store.slot_occupancies().await.unwrap(), occupying);
}

async fn rows(store: &dyn Store, generator: &HistoryGenerator) {
    let (mut open, mut turns) = (Vec::new(), 0);
    for &run in generator.runs().keys() {
        let of_run = pages(|page| store.turns_of(run, page)).await;
        assert!(of_run.is_sorted_by_key(|turn| turn.turn_index), "the first first");
        turns += of_run.len();
        open.extend(pages(|page| store.interactions_of(run, page)).await);
        for delivery in pages(|page| store.deliveries_of(run, page)).await {
            let may_be_tried = delivery.status == DeliveryStatus::DeliveryUnavailable && !delivery.resent;
            let runs = store.undelivered_to(&delivery.conversation_ref).await.unwrap();
            assert!(!may_be_tried || runs.contains(&run));
            assert!(runs.is_sorted());
        }
    }
    assert!(turns > 10 && open.len() > 3, "the story has turns and questions");
    open.retain(|question| question.is_open());
    open.sort_by_key(|question| question.interaction_id);
    assert_eq!(pages(|page| store.open_interactions(page)).await, open, "the oldest first");
    assert_eq!(store.count_open_interactions().await.unwrap(), open.len() as u64);
}

/// A page ends with the item that reaches its byte limit, and the whole list is still complete (issue 14, bounds).
async fn bytes(store: &dyn Store, generator: &HistoryGenerator) {
    let everything = PageRequest::first(1_000);
    let runs = store.runs(None, everything.clone()).await.unwrap().items;
    let stored = |run| serde_json::to_string(run).expect("a run can be written").len();
    let first_two: usize = runs.iter().take(2).map(stored).sum();
    for (max_bytes, expected) in [(0, 1), (1, 1), (first_two - 1, 2), (first_two, 2), (first_two + 1, 3)] {
        let page = everything.clone().with_max_bytes(max_bytes);
        let listing = store.runs(None, page.clone()).await.unwrap();
        assert_eq!(listing.items.len(), expected, "{max_bytes} of {first_two} bytes");
        assert!(listing.next_cursor.is_some(), "there is more");
        assert_eq!(pages_of(page, |page| store.runs(None, page)).await, runs);
    }
    let one = || everything.clone().with_max_bytes(1);
    for &run in generator.runs().keys() {
        let turns = store.turns_of(run, everything.clone()).await.unwrap();
        assert_eq!(turns.next_cursor, None, "the last page says so");
        assert_eq!(pages_of(one(), |page| store.turns_of(run, page)).await, turns.items);
        assert!(store.turns_of(run, one()).await.unwrap().items.len() <= 1);
        let questions = store.interactions_of(run, everything.clone()).await.unwrap().items;
        assert_eq!(pages_of(one(), |page| store.interactions_of(run, page)).await, questions);
        let deliveries = store.deliveries_of(run, everything.clone()).await.unwrap().items;
        assert_eq!(pages_of(one(), |page| store.deliveries_of(run, page)).await, deliveries);
    }
    journal_bytes(store, generator).await;
    let open = store.open_interactions(everything.clone()).await.unwrap().items;
    assert_eq!(pages_of(one(), |page| store.open_interactions(page)).await, open);
}

async fn effects(store: &dyn Store, generator: &HistoryGenerator) {
    let runs = generator.runs().values();
    let expected: Vec<_> =
        runs.flat_map(|run| run.pending_effects.iter().map(move |owed| (run.run_id, owed.clone()))).collect();
    assert!(!expected.is_empty(), "the story leaves something owed");
    assert_eq!(store.pending_effects(None, usize::MAX).await.unwrap(), expected, "by run and number");
    assert_eq!(store.pending_effects(None, 1).await.unwrap(), expected[..1]);
    let (run, last) = expected.last().expect("there is one");
    assert_eq!(store.pending_effects(Some((*run, last.number)), 9).await.unwrap(), vec![]);
    let before = EffectNumber(last.number.0 - 1);
    assert_eq!(store.pending_effects(Some((*run, before)), 9).await.unwrap(), [(*run, last.clone())]);
}

/// A journal page ends with the entry that reaches its byte limit, and says whether entries follow.
async fn journal_bytes(store: &dyn Store, generator: &HistoryGenerator) {
    for run in generator.runs().keys().copied().map(Some).chain([None]) {
        let all = match run {
            Some(run) => store.entries_of(run, JournalSeq(0), 10_000).await.unwrap(),
            None => store.entries(JournalSeq(0), 10_000).await.unwrap(),
        };
        let request = JournalPageRequest { run, after: JournalSeq(0), limit: 10_000, max_bytes: usize::MAX };
        let whole = JournalPage { entries: all.clone(), has_more: false };
        assert_eq!(store.journal_page(request).await.unwrap(), whole);
        let by_number = store.journal_page(JournalPageRequest { limit: 1, ..request }).await.unwrap();
        assert_eq!((&by_number.entries[..], by_number.has_more), (&all[..1], all.len() > 1));
        let stored = |entry: &JournalEntry| serde_json::to_string(&entry.event).unwrap().len();
        let first_two: usize = all.iter().take(2).map(stored).sum();
        for (max_bytes, expected) in [(0, 1), (1, 1), (first_two - 1, 2), (first_two, 2), (first_two + 1, 3)]
        {
            let page = store.journal_page(JournalPageRequest { max_bytes, ..request }).await.unwrap();
            let expected = expected.min(all.len());
            assert_eq!(page.entries, all[..expected], "{max_bytes} of {first_two} bytes");
            assert_eq!(page.has_more, expected < all.len());
        }
        let after = all.last().map_or(JournalSeq(0), |entry| entry.seq);
        let end = store.journal_page(JournalPageRequest { after, ..request }).await.unwrap();
        assert_eq!(end, JournalPage { entries: vec![], has_more: false });
    }
}

async fn unknown_names(store: &dyn Store) {
    let unknown = IdSeed(1);
    assert_eq!(store.run(RunId(unknown)).await.unwrap(), None);
    assert_eq!(store.turn(TurnId(unknown)).await.unwrap(), None);
    assert_eq!(store.interaction(InteractionId(unknown)).await.unwrap(), None);
    assert_eq!(store.interaction_with_run(InteractionId(unknown)).await.unwrap(), None);
    assert_eq!(store.delivery(DeliveryId(unknown)).await.unwrap(), None);
    let key = MessageKey { channel: "api".to_owned(), message_id: "none".to_owned() };
    assert_eq!(store.inbound(key).await.unwrap(), None);
    assert_eq!(store.undelivered_to("unknown").await.unwrap(), vec![]);
    assert_eq!(store.entries_of(RunId(unknown), JournalSeq(0), 9).await.unwrap(), vec![]);
    assert_eq!(store.entries(JournalSeq(u64::MAX), 9).await.unwrap(), vec![], "beyond the end is nothing");
    assert_eq!(store.tables_of(RunId(unknown)).await.unwrap(), Default::default());
}

async fn bad_cursors(store: &dyn Store) {
    let page = || PageRequest::first(5).after_cursor("nonsense".to_owned());
    let run = RunId(IdSeed(1));
    let answers = [
        store.runs(None, page()).await.err(),
        store.turns_of(run, page()).await.err(),
        store.interactions_of(run, page()).await.err(),
        store.deliveries_of(run, page()).await.err(),
        store.open_interactions(page()).await.err(),
    ];
    for answer in answers {
        assert!(matches!(answer, Some(StoreError::Invalid(StoreInputError::Cursor))), "{answer:?}");
    }
}
