//! A reader's place moves on and never back.

use abide_ports::store::Seq;

use super::{Keeps, Places, open};

pub(super) async fn check(places: &dyn Places) {
    let place = places.fresh();
    let store = open(&*place).await;
    let reader = "reader 'one' \0 \\";
    assert_eq!(store.cursor(reader).await.unwrap(), Seq(0));
    store.advance(reader, Seq(7)).await.unwrap();
    store.advance("two", Seq(2)).await.unwrap();
    store.advance(reader, Seq(5)).await.unwrap();
    assert_eq!(store.cursor(reader).await.unwrap(), Seq(7));
    store.advance(reader, Seq(8)).await.unwrap();
    assert_eq!(store.cursor(reader).await.unwrap(), Seq(8));
    assert_eq!(store.cursor("two").await.unwrap(), Seq(2));
    assert_eq!(store.cursor("three").await.unwrap(), Seq(0));
    drop(store);
    if place.keeps() == Keeps::Everything {
        assert_eq!(open(&*place).await.cursor(reader).await.unwrap(), Seq(8));
    }
}
