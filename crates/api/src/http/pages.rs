//! Stretches of the journal and pages of lists that are bounded in bytes, whatever they hold.

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

/// What a page may have: its last entry may go beyond it, the next one is on the next page.
pub(super) const MAX_PAGE_BYTES: usize = 1 << 20;
/// What a page takes while it is read and written out, of the bytes under way. Its last item may be the longest answer of
/// a turn, which is 4 MiB.
pub(super) const RESERVED_BYTES: usize = 6 << 20;
/// How many entries are read first, when nothing is known about their size, and at most.
const FIRST_ENTRIES: usize = 8;
const MAX_ENTRIES: usize = 128;

/// An answer that may be as large as a page, with the room that was reserved for it before it was read.
pub(super) fn answer(value: &impl Serialize, reservation: Option<ByteReservation>) -> Response {
    // Texts, numbers and JSON values can always be written.
    let text = serde_json::to_vec(value).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], budget::body(text, reservation)).into_response()
}

/// An entry as it is written out for readers.
#[derive(Debug)]
pub(super) struct EncodedEntry {
    pub(super) seq: JournalSeq,
    pub(super) run: RunId,
    /// An event of the wire, as JSON.
    pub(super) json: Vec<u8>,
}

/// Some entries, in order.
#[derive(Debug)]
pub(super) struct EntryPage {
    pub(super) entries: Vec<EncodedEntry>,
    /// Whether there is more behind them.
    pub(super) has_more: bool,
}

/// The entries after a position: at most so many, and about a page of bytes at most, but at least one if there is one.
pub(super) async fn read(
    daemon: &Daemon,
    run: Option<RunId>,
    after: JournalSeq,
    most: usize,
) -> Result<EntryPage, StoreError> {
    let (mut entries, mut bytes, mut after, mut step) = (Vec::new(), 0, after, FIRST_ENTRIES);
    loop {
        // One more than is shown, to know whether there is a next page.
        let wanted = step.min(most + 1 - entries.len());
        let found = load(daemon, run, after, wanted).await?;
        let is_end = found.len() < wanted;
        let mut largest = 1;
        for entry in &found {
            if entries.len() == most || bytes >= MAX_PAGE_BYTES {
                return Ok(EntryPage { entries, has_more: true });
            }
            let json = write(entry);
            (bytes, largest, after) = (bytes + json.len(), largest.max(json.len()), entry.seq);
            entries.push(EncodedEntry { seq: entry.seq, run: entry.run_id, json });
        }
        if is_end {
            return Ok(EntryPage { entries, has_more: false });
        }
        // As many as fit if they are like the largest one so far.
        let left = MAX_PAGE_BYTES.saturating_sub(bytes);
        step = (left / largest + 1).min(step * 4).min(MAX_ENTRIES);
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

fn write(entry: &JournalEntry) -> Vec<u8> {
    // Texts, numbers and JSON values can always be written, and JSON has no line ends of its own.
    serde_json::to_vec(&translate::event(entry)).unwrap_or_default()
}
