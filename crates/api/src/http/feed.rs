//! The journal, told to everybody who listens: new entries are read once and passed on to all.
//!
//! A reader that cannot keep up loses its place in the passing-on and goes back to the store, at its own pace; it holds
//! nobody up and nothing is kept for it. Readers that come late read the store until they have caught up. So the feed
//! may skip what nobody listened to, and must skip nothing else.

use std::{sync::OnceLock, time::Duration};

use abide_daemon::Daemon;
use abide_domain::id::RunId;
use abide_ports::store::{Entry, Seq};
use axum::body::Bytes;
use tokio::sync::{
    broadcast::{Receiver, Sender},
    watch,
};

use super::translate;

/// Passes new entries on.
#[derive(Debug)]
pub(super) struct Feed {
    daemon: Daemon,
    told: Sender<Told>,
    started: OnceLock<()>,
    /// Whether the journal was looked at for the first time: only what comes after that look is passed on.
    begun: watch::Sender<bool>,
}

/// An entry as every reader gets it, written out once for all of them.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) seq: Seq,
    pub(super) run: RunId,
    pub(super) frame: Bytes,
}

/// How many entries wait for a reader before it must go back to the store.
const KEPT: usize = 256;
/// How many entries are read at a time.
const PAGE: usize = 128;
/// How long to wait at the most before the journal is looked at again, whatever was heard of changes.
const LONGEST_NAP: Duration = Duration::from_secs(2);

impl Feed {
    pub(super) fn new(daemon: Daemon) -> Self {
        Self { daemon, told: Sender::new(KEPT), started: OnceLock::new(), begun: watch::Sender::new(false) }
    }

    /// Listens from now on. Whoever wants to know what was before reads the store afterwards, not first.
    pub(super) fn listen(&self) -> Receiver<Told> {
        let receiver = self.told.subscribe();
        self.started.get_or_init(|| {
            tokio::spawn(pass_on(self.daemon.clone(), self.told.clone(), self.begun.clone()));
        });
        receiver
    }

    /// Waits until everything new is passed on. Who read the store before that may have missed what was committed
    /// between their look and the feed's first one.
    pub(super) async fn begun(&self) {
        let mut begun = self.begun.subscribe();
        let _the_sender_is_ours = begun.wait_for(|begun| *begun).await;
    }
}

async fn pass_on(daemon: Daemon, told: Sender<Told>, begun: watch::Sender<bool>) {
    let mut changes = daemon.changes();
    let mut position = None;
    loop {
        changes.borrow_and_update();
        // A store that is away for a moment is asked again; nothing was skipped.
        if let Ok(reached) = catch_up(&daemon, &told, position).await {
            position = Some(reached);
            begun.send_replace(true);
        }
        let _woken_in_any_case = tokio::time::timeout(LONGEST_NAP, changes.changed()).await;
    }
}

/// Tells everything after a position, and says how far that was.
async fn catch_up(
    daemon: &Daemon,
    told: &Sender<Told>,
    position: Option<Seq>,
) -> Result<Seq, abide_ports::store::StoreError> {
    let head = daemon.store().head().await?;
    // Whoever begins to listen after this look reads the store after it too, and so finds everything up to this head.
    let Some(mut position) = position.filter(|_| told.receiver_count() > 0) else { return Ok(head) };
    while position < head {
        let entries = daemon.store().entries(position, PAGE).await?;
        let Some(last) = entries.last() else { break };
        position = last.seq;
        for entry in &entries {
            let _nobody_listens_any_more =
                told.send(Told { seq: entry.seq, run: entry.run_id, frame: frame(entry) });
        }
    }
    Ok(position)
}

/// An entry as a server-sent event.
pub(super) fn frame(entry: &Entry) -> Bytes {
    let event = translate::event(entry);
    // Texts, numbers and JSON values can always be written, and JSON has no line ends of its own.
    let data = serde_json::to_string(&event).unwrap_or_default();
    Bytes::from(format!("id: {}\ndata: {data}\n\n", event.seq))
}
