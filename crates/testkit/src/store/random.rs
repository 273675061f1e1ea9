//! Random histories leave the same in every store, also after it was closed and opened again.

use super::{Keeps, Places, open, same};
use crate::history::Author;

const SEEDS: u64 = 4;
const COMMITS: usize = 60;

pub(super) async fn check(places: &dyn Places) {
    for seed in 0..SEEDS {
        let (place, reference) = (places.fresh(), places.reference());
        let mut store = open(&*place).await;
        let mut author = Author::new(seed, 1);
        for (count, commit) in author.commits(COMMITS).into_iter().enumerate() {
            let expected = reference.commit(commit.clone()).await.expect("the reference takes it");
            assert_eq!(store.commit(commit).await.expect("a legal commit is taken"), expected, "seed {seed}");
            if count == COMMITS / 2 && place.keeps() == Keeps::Everything {
                drop(store);
                store = open(&*place).await;
            }
        }
        same(&*store, &*reference).await;
    }
}
