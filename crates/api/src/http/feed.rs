//! Broadcasts new journal entries: each is read once and sent to all subscribers.
//!
//! A subscriber that falls behind loses entries of the broadcast and reads them from the store at its own pace. It
//! neither delays others nor needs a buffer. New subscribers read the store until they have caught up. The broadcast
//! may therefore skip entries while there are no subscribers, but no others.

use std::time::Duration;

use abide_daemon::Daemon;
use abide_domain::id::RunId;
use abide_ports::store::{JournalPageRequest, JournalSeq, StoreError};
use axum::body::Bytes;
use tokio::sync::{
    OnceCell,
    broadcast::{Receiver, Sender},
};

use super::entry_pages::{self, EncodedEntry};

#[derive(Debug)]
pub(super) struct EventBroadcast {
    daemon: Daemon,
    sender: Sender<BroadcastEntry>,
    started: OnceCell<()>,
}

/// An entry, serialised once for all subscribers.
#[derive(Clone, Debug)]
pub(super) struct BroadcastEntry {
    pub(super) seq: JournalSeq,
    pub(super) run: RunId,
    /// `None` if the entry exceeds `MAX_FRAME_BYTES`; subscribers then read it from the store.
    pub(super) frame: Option<Bytes>,
}

/// Capacity of the broadcast, in entries. A subscriber that is further behind reads the store.
const BROADCAST_CAPACITY: usize = 256;
/// Maximum size of a broadcast entry, in bytes.
const MAX_FRAME_BYTES: usize = 16 << 10;
/// Number of entries read from the store at a time.
const READ_ENTRIES: usize = 128;
/// Maximum time between two reads of the journal, in case a change notification is missed.
const MAX_READ_INTERVAL: Duration = Duration::from_secs(2);

impl EventBroadcast {
    pub(super) fn new(daemon: Daemon) -> Self {
        Self { daemon, sender: Sender::new(BROADCAST_CAPACITY), started: OnceCell::new() }
    }

    /// Subscribes to entries from now on. Callers must read earlier entries from the store after this call, not before.
    pub(super) async fn subscribe(&self) -> Result<Receiver<BroadcastEntry>, StoreError> {
        let receiver = self.sender.subscribe();
        let begin = || async {
            // The head is taken before the first subscriber reads the store, so entries committed between the two are
            // broadcast.
            let head = self.daemon.store().head().await?;
            tokio::spawn(broadcast_loop(self.daemon.clone(), self.sender.clone(), head));
            Ok(())
        };
        self.started.get_or_try_init(begin).await?;
        Ok(receiver)
    }
}

async fn broadcast_loop(daemon: Daemon, sender: Sender<BroadcastEntry>, mut position: JournalSeq) {
    let mut changes = daemon.changes();
    loop {
        changes.borrow_and_update();
        // If the store fails, the read is repeated from the same position, so nothing is skipped.
        if let Ok(reached) = catch_up(&daemon, &sender, position).await {
            position = reached;
        }
        // On timeout the journal is read all the same.
        tokio::time::timeout(MAX_READ_INTERVAL, changes.changed()).await.ok();
    }
}

/// Broadcasts all entries after a position. Returns the position reached.
async fn catch_up(
    daemon: &Daemon,
    sender: &Sender<BroadcastEntry>,
    mut position: JournalSeq,
) -> Result<JournalSeq, StoreError> {
    let head = daemon.store().head().await?;
    // A client that subscribes after this check also reads the store after it, and so finds all entries up to this
    // head.
    if sender.receiver_count() == 0 {
        return Ok(head);
    }
    while position < head {
        let request = JournalPageRequest {
            run: None,
            after: position,
            limit: READ_ENTRIES,
            max_bytes: entry_pages::MAX_PAGE_BYTES,
        };
        let page = entry_pages::read_page(daemon, request).await?;
        let Some(last) = page.entries.last() else { break };
        position = last.seq;
        for entry in &page.entries {
            let frame = (entry.json.len() <= MAX_FRAME_BYTES).then(|| {
                let mut frame = Vec::new();
                write_sse_frame(&mut frame, entry);
                Bytes::from(frame)
            });
            // An error means that there is no subscriber.
            sender.send(BroadcastEntry { seq: entry.seq, run: entry.run, frame }).ok();
        }
    }
    Ok(position)
}

/// An upper bound of the length of an entry as a server-sent event.
pub(super) fn sse_frame_bytes(entry: &EncodedEntry) -> usize {
    /// Length of the field names, line breaks and the longest id.
    const FIELD_BYTES: usize = 40;
    entry.json.len() + FIELD_BYTES
}

/// Appends an entry as a server-sent event.
pub(super) fn write_sse_frame(text: &mut Vec<u8>, entry: &EncodedEntry) {
    let head = format!("id: {}\ndata: ", entry.seq.0);
    for part in [head.as_bytes(), &entry.json, b"\n\n"] {
        text.extend_from_slice(part);
    }
}
