//! Pages of journal entries and lists, limited in bytes.

use abide_daemon::Daemon;
use abide_domain::id::RunId;
use abide_ports::store::{JournalEntry, JournalPage, JournalPageRequest, JournalSeq, StoreError};
use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{HttpState, budget, guard::RequestCredential, problem::HttpProblem, translate};

/// Target size of a page. The last entry may exceed it.
pub(super) const MAX_PAGE_BYTES: usize = 1 << 20;
/// Bytes reserved while a page is read and serialised. The last item may be a run, which has its result twice. A
/// longer page is read again with a reservation of its length.
const PAGE_RESERVATION_BYTES: usize = 6 << 20;
/// Maximum number of pages that are read and serialised at a time. Their decoded form is not part of the budget.
pub(super) const MAX_PAGE_READERS: usize = 2;

/// Serialises a value that is read after its bytes are reserved. Requests that wait for their bytes hold no value.
pub(super) async fn json_response<T: Serialize, F: Future<Output = Result<T, HttpProblem>>>(
    interface: &HttpState,
    credential: &RequestCredential,
    read: impl Fn() -> F,
) -> Result<Response, HttpProblem> {
    json_text_response(interface, credential, || {
        let value = read();
        // Serialising text, numbers and JSON values does not fail.
        async { Ok(serde_json::to_vec(&value.await?).unwrap_or_default()) }
    })
    .await
}

/// Like [`json_response`], for a value that `read` serialises.
pub(super) async fn json_text_response<F: Future<Output = Result<Vec<u8>, HttpProblem>>>(
    interface: &HttpState,
    credential: &RequestCredential,
    read: impl Fn() -> F,
) -> Result<Response, HttpProblem> {
    let mut expected = PAGE_RESERVATION_BYTES;
    loop {
        let reservation = interface.0.budget.reserve(&credential.0, expected).await;
        // The semaphore is never closed, so `acquire` does not fail.
        let reader_permit = interface.0.page_readers.acquire().await.ok();
        let text = read().await?;
        drop(reader_permit);
        if text.len() <= expected {
            let body = budget::reserved_body(text, reservation);
            return Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response());
        }
        expected = text.len();
    }
}

/// A journal entry, serialised for clients.
#[derive(Debug)]
pub(super) struct EncodedEntry {
    pub(super) seq: JournalSeq,
    pub(super) run: RunId,
    /// A wire event as JSON.
    pub(super) json: Vec<u8>,
}

/// Consecutive journal entries.
#[derive(Debug)]
pub(super) struct EntryPage {
    pub(super) entries: Vec<EncodedEntry>,
    pub(super) has_more: bool,
}

/// Reads the entries after a position: at most `limit`, about `max_bytes`, and at least one if there is one.
pub(super) async fn read_page(daemon: &Daemon, request: JournalPageRequest) -> Result<EntryPage, StoreError> {
    let JournalPage { entries, has_more } = daemon.store().journal_page(request).await?;
    // Each decoded entry is dropped after it is encoded.
    let encode =
        |entry: JournalEntry| EncodedEntry { seq: entry.seq, run: entry.run_id, json: encode(&entry) };
    Ok(EntryPage { entries: entries.into_iter().map(encode).collect(), has_more })
}

fn encode(entry: &JournalEntry) -> Vec<u8> {
    // Serialising text, numbers and JSON values does not fail, and compact JSON contains no line breaks.
    let mut json = serde_json::to_vec(&translate::event(entry)).unwrap_or_default();
    json.shrink_to_fit();
    json
}
