//! A stored reader position moves only forwards.

use abide_ports::store::JournalSeq;

use super::{TestStoreDurability, TestStoreProvider, open};

pub(super) async fn check(places: &dyn TestStoreProvider) {
    let place = places.fresh();
    let store = open(&*place).await;
    let reader = "reader 'one' \0 \\";
    assert_eq!(store.cursor(reader).await.unwrap(), JournalSeq(0));
    store.advance(reader, JournalSeq(7)).await.unwrap();
    store.advance("two", JournalSeq(2)).await.unwrap();
    store.advance(reader, JournalSeq(5)).await.unwrap();
    assert_eq!(store.cursor(reader).await.unwrap(), JournalSeq(7));
    store.advance(reader, JournalSeq(8)).await.unwrap();
    assert_eq!(store.cursor(reader).await.unwrap(), JournalSeq(8));
    assert_eq!(store.cursor("two").await.unwrap(), JournalSeq(2));
    assert_eq!(store.cursor("three").await.unwrap(), JournalSeq(0));
    drop(store);
    if place.keeps() == TestStoreDurability::Everything {
        assert_eq!(open(&*place).await.cursor(reader).await.unwrap(), JournalSeq(8));
    }
}
