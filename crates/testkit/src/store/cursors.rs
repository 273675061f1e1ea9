//! A stored reader position moves only forwards.

use abide_ports::store::JournalSeq;

use super::{TestStoreDurability, TestStoreProvider, open};

pub(super) async fn check(places: &dyn TestStoreProvider) {
    let place = places.new_place();
    let store = open(&*place).await;
    let reader = "reader 'one' \0 \\";
    assert_eq!(store.cursor(reader).await.unwrap(), JournalSeq(0));
    store.advance_cursor(reader, JournalSeq(7)).await.unwrap();
    store.advance_cursor("two", JournalSeq(2)).await.unwrap();
    store.advance_cursor(reader, JournalSeq(5)).await.unwrap();
    assert_eq!(store.cursor(reader).await.unwrap(), JournalSeq(7));
    store.advance_cursor(reader, JournalSeq(8)).await.unwrap();
    assert_eq!(store.cursor(reader).await.unwrap(), JournalSeq(8));
    assert_eq!(store.cursor("two").await.unwrap(), JournalSeq(2));
    assert_eq!(store.cursor("three").await.unwrap(), JournalSeq(0));
    drop(store);
    if place.durability() == TestStoreDurability::Durable {
        assert_eq!(open(&*place).await.cursor(reader).await.unwrap(), JournalSeq(8));
    }
}
