//! Random histories give the same content in every store, also after it was closed and reopened.

use super::{TestStoreDurability, TestStoreProvider, assert_equal, open};
use crate::history::HistoryGenerator;

const SEEDS: u64 = 4;
const COMMITS: usize = 60;

pub(super) async fn check(places: &dyn TestStoreProvider) {
    for seed in 0..SEEDS {
        let (place, reference) = (places.new_place(), places.reference());
        let mut store = open(&*place).await;
        let mut generator = HistoryGenerator::new(seed, 1);
        for (count, commit) in generator.commits(COMMITS).into_iter().enumerate() {
            let expected = reference.commit(commit.clone()).await.expect("the reference takes it");
            assert_eq!(store.commit(commit).await.expect("a legal commit is taken"), expected, "seed {seed}");
            if count == COMMITS / 2 && place.durability() == TestStoreDurability::Durable {
                drop(store);
                store = open(&*place).await;
            }
        }
        assert_equal(&*store, &*reference).await;
    }
}
