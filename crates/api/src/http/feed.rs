//! The journal, told to everybody who listens: new entries are read once and passed on to all.
//!
//! A reader that cannot keep up loses its place in the passing-on and goes back to the store, at its own pace; it holds
//! nobody up and nothing is kept for it. Readers that come late read the store until they have caught up. So the feed
//! may skip what nobody listened to, and must skip nothing else.

use std::time::Duration;

use abide_daemon::Daemon;
use abide_domain::id::RunId;
use abide_ports::store::{JournalSeq, StoreError};
use axum::body::Bytes;
use tokio::sync::{
    OnceCell,
    broadcast::{Receiver, Sender},
};

use super::pages::{self, EncodedEntry};

/// Passes new entries on.
#[derive(Debug)]
pub(super) struct EventBroadcast {
    daemon: Daemon,
    told: Sender<BroadcastEntry>,
    started: OnceCell<()>,
}

/// An entry as every reader gets it, written out once for all of them.
#[derive(Clone, Debug)]
pub(super) struct BroadcastEntry {
    pub(super) seq: JournalSeq,
    pub(super) run: RunId,
    /// None if it is too large to be kept for everybody: who wants it reads it from the store.
    pub(super) frame: Option<Bytes>,
}

/// How many entries wait for a reader before it must go back to the store.
const KEPT: usize = 256;
/// The largest entry that is kept for readers, in bytes.
const MAX_FRAME_BYTES: usize = 64 << 10;
/// How many entries are read at a time.
const PAGE: usize = 128;
/// How long to wait at the most before the journal is looked at again, whatever was heard of changes.
const LONGEST_NAP: Duration = Duration::from_secs(2);

impl EventBroadcast {
    pub(super) fn new(daemon: Daemon) -> Self {
        Self { daemon, told: Sender::new(KEPT), started: OnceCell::new() }
    }

    /// Listens from now on. Whoever wants to know what was before reads the store afterwards, not first.
    pub(super) async fn listen(&self) -> Result<Receiver<BroadcastEntry>, StoreError> {
        let receiver = self.told.subscribe();
        let begin = || async {
            // Before the first listener reads the store: what comes between the two is told and not only stored.
            let head = self.daemon.store().head().await?;
            tokio::spawn(pass_on(self.daemon.clone(), self.told.clone(), head));
            Ok(())
        };
        self.started.get_or_try_init(begin).await?;
        Ok(receiver)
    }
}

async fn pass_on(daemon: Daemon, told: Sender<BroadcastEntry>, mut position: JournalSeq) {
    let mut changes = daemon.changes();
    loop {
        changes.borrow_and_update();
        // A store that is away for a moment is asked again; nothing was skipped.
        if let Ok(reached) = catch_up(&daemon, &told, position).await {
            position = reached;
        }
        let _woken_in_any_case = tokio::time::timeout(LONGEST_NAP, changes.changed()).await;
    }
}

/// Tells everything after a position, and says how far that was.
async fn catch_up(
    daemon: &Daemon,
    told: &Sender<BroadcastEntry>,
    mut position: JournalSeq,
) -> Result<JournalSeq, StoreError> {
    let head = daemon.store().head().await?;
    // Whoever begins to listen after this look reads the store after it too, and so finds everything up to this head.
    if told.receiver_count() == 0 {
        return Ok(head);
    }
    while position < head {
        let page = pages::read(daemon, None, position, PAGE).await?;
        let Some(last) = page.entries.last() else { break };
        position = last.seq;
        for entry in &page.entries {
            let frame = (entry.json.len() <= MAX_FRAME_BYTES).then(|| frame(entry));
            // Without a reader there is nobody to tell.
            told.send(BroadcastEntry { seq: entry.seq, run: entry.run, frame }).ok();
        }
    }
    Ok(position)
}

/// An entry as a server-sent event.
pub(super) fn frame(entry: &EncodedEntry) -> Bytes {
    let head = format!("id: {}\ndata: ", entry.seq.0);
    Bytes::from([head.as_bytes(), &entry.json, b"\n\n"].concat())
}
