//! Pages of journal entries and lists, limited in bytes.

use abide_daemon::Daemon;
use abide_domain::id::RunId;
use abide_ports::store::{JournalEntry, JournalSeq, StoreError};
use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    budget::{self, ByteReservation},
    translate,
};

/// Target size of a page. The last entry may exceed it.
pub(super) const MAX_PAGE_BYTES: usize = 1 << 20;
/// Bytes reserved while a page is read and serialised. The last item may be the longest result of a turn, 4 MiB.
pub(super) const PAGE_RESERVATION_BYTES: usize = 6 << 20;
/// Number of entries in the first read, when their size is unknown, and the maximum number per read.
const FIRST_READ_ENTRIES: usize = 8;
const MAX_READ_ENTRIES: usize = 128;

/// Builds a response of up to page size with the reservation made before it was read.
pub(super) fn json_response(value: &impl Serialize, reservation: Option<ByteReservation>) -> Response {
    // Serialising text, numbers and JSON values does not fail.
    let text = serde_json::to_vec(value).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], budget::reserved_body(text, reservation)).into_response()
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

/// Reads the entries after a position: at most `most`, about one page of bytes, and at least one if there is one.
pub(super) async fn read_page(
    daemon: &Daemon,
    run: Option<RunId>,
    after: JournalSeq,
    most: usize,
) -> Result<EntryPage, StoreError> {
    let (mut entries, mut bytes, mut after, mut step) = (Vec::new(), 0, after, FIRST_READ_ENTRIES);
    loop {
        // One more than requested, to detect whether there is a next page.
        let count = step.min(most + 1 - entries.len());
        let found = load(daemon, run, after, count).await?;
        let is_end = found.len() < count;
        let mut largest = 1;
        for entry in &found {
            if entries.len() == most || bytes >= MAX_PAGE_BYTES {
                return Ok(EntryPage { entries, has_more: true });
            }
            let json = encode(entry);
            (bytes, largest, after) = (bytes + json.len(), largest.max(json.len()), entry.seq);
            entries.push(EncodedEntry { seq: entry.seq, run: entry.run_id, json });
        }
        if is_end {
            return Ok(EntryPage { entries, has_more: false });
        }
        // As many as fit if each has the size of the largest one so far.
        let left = MAX_PAGE_BYTES.saturating_sub(bytes);
        step = (left / largest + 1).min(step * 4).min(MAX_READ_ENTRIES);
    }
}

async fn load(
    daemon: &Daemon,
    run: Option<RunId>,
    after: JournalSeq,
    most: usize,
) -> Result<Vec<JournalEntry>, StoreError> {
    match run {
        Some(run) => daemon.store().entries_of(run, after, most).await,
        None => daemon.store().entries(after, most).await,
    }
}

fn encode(entry: &JournalEntry) -> Vec<u8> {
    // Serialising text, numbers and JSON values does not fail, and compact JSON contains no line breaks.
    serde_json::to_vec(&translate::event(entry)).unwrap_or_default()
}
