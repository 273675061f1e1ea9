//! Journal events: a stream of server-sent events with durable cursors, or one page of JSON.
//!
//! The `id` of an event is its position in the journal, so a client can resume after a restart of either side. A client
//! that does not read costs one page and a place in the feed, until the server's timeout disconnects it. Pages of
//! streams have a budget: a stream reads the store only after it has reserved the bytes of a page.

use std::{pin::Pin, sync::Arc, time::Duration};

use abide_domain::id::RunId;
use abide_observe::metrics::StreamReaderGuard;
use abide_ports::store::{JournalPageRequest, JournalSeq};
use abide_wire::{event as wire, service};
use axum::{
    body::{Body, Bytes},
    extract::{Extension, State},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use serde::Deserialize;
use tokio::{
    sync::{
        OwnedSemaphorePermit,
        broadcast::{Receiver, error::RecvError},
        watch,
    },
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use utoipa::IntoParams;

use super::{
    HttpState, StopMode,
    body::{PathParams, QueryParams, validate_limit},
    budget::{self, ByteReservation},
    entry_pages,
    feed::{BroadcastEntry, sse_frame_bytes, write_sse_frame},
    guard::RequestCredential,
    problem::{HttpProblem, ProblemCode},
    runs::{load_run, parse_run_id},
};

/// The position after which events are returned.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Returns events after this `seq`. The header `Last-Event-ID`, which a reader sends when it reconnects, takes
    /// precedence.
    after: Option<u64>,
    /// The same as `after`, with the name that other lists use.
    cursor: Option<u64>,
    /// Maximum number of events of a page; default 100. A page ends earlier at 1 MiB. Has no effect on a stream.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Reads the events of all runs.
///
/// The response is a stream of server-sent events, or one page if the request accepts only `application/json`. The
/// `data` of each message is an `EventEnvelope`, and its `id` is the `seq` of the event. An idle stream carries
/// comments, so that both sides detect a dead connection. Without a cursor, it begins with the first event.
#[utoipa::path(
    get, path = "/v1/events", tag = "events", operation_id = "read_events",
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "The `seq` of the last event that was read.", pattern = "^[0-9]{0,18}$")),
    responses(
        (status = 200, description = "A page or a stream of events.", content(
            (service::ListResponse<wire::EventEnvelope> = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`: the position is after the end of the journal"),
        (status = 406, description = "`NOT_ACCEPTABLE`"),
    ),
)]
pub(super) async fn all(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    headers: HeaderMap,
    QueryParams(from): QueryParams<EventsQuery>,
) -> Result<Response, HttpProblem> {
    respond(&interface, &credential, None, &headers, &from).await
}

/// Reads the events of a run.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/events", tag = "events", operation_id = "read_run_events",
    params(
        ("run_id" = String, Path, description = "The run."),
        EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The `seq` of the last event that was read.", pattern = "^[0-9]{0,18}$"),
    ),
    responses(
        (status = 200, description = "A page or a stream of events.", content(
            (service::ListResponse<wire::EventEnvelope> = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`: the position is after the end of the journal"),
        (status = 404, description = "`RUN_NOT_FOUND`"),
        (status = 406, description = "`NOT_ACCEPTABLE`"),
    ),
)]
pub(super) async fn of_run(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    PathParams(id): PathParams<String>,
    headers: HeaderMap,
    QueryParams(from): QueryParams<EventsQuery>,
) -> Result<Response, HttpProblem> {
    let run = parse_run_id(&id)?;
    load_run(&interface, run).await?;
    respond(&interface, &credential, Some(run), &headers, &from).await
}

async fn respond(
    interface: &HttpState,
    credential: &RequestCredential,
    run: Option<RunId>,
    headers: &HeaderMap,
    from: &EventsQuery,
) -> Result<Response, HttpProblem> {
    let after = start_position(headers, from)?;
    let most = validate_limit(from.limit)?;
    let head = interface.daemon().store().head().await?;
    if after > head {
        return Err(HttpProblem::new(
            ProblemCode::InvalidCursor,
            format!(
                "the journal ends at {}; this position belongs to another journal; start from the beginning",
                head.0
            ),
        ));
    }
    match negotiate_format(headers)? {
        EventsFormat::Page => page(interface, credential, run, after, most).await,
        EventsFormat::Stream => stream(interface, credential, run, after).await,
    }
}

/// The response format requested by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventsFormat {
    Stream,
    Page,
}

/// Selects a stream unless the client accepts only JSON.
fn negotiate_format(headers: &HeaderMap) -> Result<EventsFormat, HttpProblem> {
    let mut accepted = Vec::new();
    for value in headers.get_all(header::ACCEPT) {
        accepted.extend(
            value
                .to_str()
                .unwrap_or_default()
                .split(',')
                .map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()),
        );
    }
    let accepts = |kinds: &[&str]| accepted.iter().any(|kind| kinds.contains(&kind.as_str()));
    if accepted.is_empty() || accepts(&["text/event-stream"]) {
        return Ok(EventsFormat::Stream);
    }
    if accepts(&["application/json", "application/*"]) {
        return Ok(EventsFormat::Page);
    }
    if accepts(&["*/*", "text/*", ""]) {
        return Ok(EventsFormat::Stream);
    }
    Err(HttpProblem::new(ProblemCode::NotAcceptable, "events come as text/event-stream or application/json"))
}

fn start_position(headers: &HeaderMap, from: &EventsQuery) -> Result<JournalSeq, HttpProblem> {
    let wrong =
        || HttpProblem::new(ProblemCode::InvalidCursor, "Last-Event-ID must be the id of an event, a number");
    let last = match headers.get("last-event-id") {
        // A client that has not received an id sends an empty one.
        Some(id) if id.is_empty() => None,
        Some(id) => Some(id.to_str().ok().and_then(|id| id.parse().ok()).ok_or_else(wrong)?),
        None => None,
    };
    Ok(JournalSeq(last.or(from.after).or(from.cursor).unwrap_or(0)))
}

async fn page(
    interface: &HttpState,
    credential: &RequestCredential,
    run: Option<RunId>,
    after: JournalSeq,
    most: usize,
) -> Result<Response, HttpProblem> {
    let request = JournalPageRequest { run, after, limit: most, max_bytes: entry_pages::MAX_PAGE_BYTES };
    entry_pages::json_text_response(interface, credential, || async {
        let page = entry_pages::read_page(interface.daemon(), request).await?;
        let end = match page.entries.last().filter(|_| page.has_more) {
            Some(last) => format!("],\"next_cursor\":\"{}\"}}", last.seq.0),
            None => "],\"next_cursor\":null}".to_owned(),
        };
        let mut text = Vec::from(b"{\"items\":[");
        for (number, entry) in page.entries.into_iter().enumerate() {
            text.reserve_exact(entry.json.len() + 1);
            text.extend_from_slice(if number > 0 { b"," } else { b"" });
            text.extend_from_slice(&entry.json);
        }
        text.extend_from_slice(end.as_bytes());
        Ok(text)
    })
    .await
}

async fn stream(
    interface: &HttpState,
    credential: &RequestCredential,
    run: Option<RunId>,
    after: JournalSeq,
) -> Result<Response, HttpProblem> {
    let permit = interface.0.streams.clone().try_acquire_owned().map_err(|_| {
        HttpProblem::new(
            ProblemCode::TooManyConnections,
            "too many streams are open (setting http.max_streams); close some",
        )
    })?;
    let mut heartbeat = interval_at(Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reader = EventStreamReader {
        broadcast: interface.0.feed.subscribe().await?,
        stop: interface.0.stop.subscribe(),
        interface: interface.clone(),
        run,
        last_seq: after,
        caught_up: false,
        pending: Bytes::from_static(b": events\nretry: 1000\n\n"),
        credential: credential.0.clone(),
        expected_bytes: READ_RESERVATION_BYTES,
        waiting_reservation: None,
        heartbeat,
        _permit: permit,
        _reader_guard: interface.0.metrics.stream_reader(),
    };
    let frames = futures_util::stream::unfold(reader, |mut reader| async move {
        let frames = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frames), reader))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Interval of keep-alive comments on an idle stream.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Delay before reading again from a store that failed.
const STORE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number and target size of the entries that are read from the store at a time for one client.
const READ_ENTRIES: usize = 32;
const READ_BYTES: usize = 64 << 10;
/// Bytes reserved before these entries are read. Longer entries are read again with a reservation of their length.
const READ_RESERVATION_BYTES: usize = 128 << 10;

type WaitingReservation = Pin<Box<dyn Future<Output = Option<ByteReservation>> + Send>>;

/// State of one event stream. It is polled only when its connection has room.
struct EventStreamReader {
    interface: HttpState,
    run: Option<RunId>,
    /// All entries up to this one have been sent or are in `pending`.
    last_seq: JournalSeq,
    broadcast: Receiver<BroadcastEntry>,
    /// Whether the stream has caught up with the store and needs only the feed.
    caught_up: bool,
    /// Bytes to send. Those that were read from the store hold their reservation.
    pending: Bytes,
    credential: Arc<str>,
    /// Bytes to reserve for the next read.
    expected_bytes: usize,
    /// The reservation for the next read. The reader holds no entries while it waits.
    waiting_reservation: Option<WaitingReservation>,
    heartbeat: Interval,
    stop: watch::Receiver<StopMode>,
    _permit: OwnedSemaphorePermit,
    _reader_guard: StreamReaderGuard,
}

impl EventStreamReader {
    /// Returns the next bytes to send; `None` when the daemon stops.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.pending.is_empty() {
                return Some(std::mem::take(&mut self.pending));
            }
            if *self.stop.borrow() != StopMode::No {
                return None;
            }
            if !self.caught_up {
                let (stream_budget, credential, bytes) =
                    (self.interface.0.stream_budget.clone(), self.credential.clone(), self.expected_bytes);
                let waiting = self.waiting_reservation.get_or_insert_with(|| {
                    Box::pin(async move { stream_budget.reserve(&credential, bytes).await })
                });
                tokio::select! {
                    reservation = waiting => {
                        self.waiting_reservation = None;
                        self.read_from_store(reservation).await;
                    }
                    _ = self.heartbeat.tick() => return Some(Bytes::from_static(b":\n\n")),
                    _ = self.stop.changed() => {}
                }
                continue;
            }
            tokio::select! {
                entry = self.broadcast.recv() => match entry {
                    Ok(entry) => self.on_broadcast_entry(entry),
                    Err(RecvError::Lagged(_)) => self.caught_up = false,
                    Err(RecvError::Closed) => return None,
                },
                _ = self.heartbeat.tick() => return Some(Bytes::from_static(b":\n\n")),
                _ = self.stop.changed() => {}
            }
        }
    }

    /// Reads from the store. An empty page means that all later entries arrive by the feed, which was subscribed to
    /// before.
    async fn read_from_store(&mut self, reservation: Option<ByteReservation>) {
        let (run, after) = (self.run, self.last_seq);
        let request = JournalPageRequest { run, after, limit: READ_ENTRIES, max_bytes: READ_BYTES };
        // The semaphore is never closed, so `acquire` does not fail.
        let reader_permit = self.interface.0.page_readers.acquire().await.ok();
        let page = entry_pages::read_page(self.interface.daemon(), request).await;
        match page {
            Ok(page) => {
                let bytes = page.entries.iter().map(sse_frame_bytes).sum();
                if bytes > self.expected_bytes {
                    self.expected_bytes = bytes;
                    return;
                }
                self.expected_bytes = READ_RESERVATION_BYTES;
                self.caught_up = page.entries.is_empty();
                if let Some(last) = page.entries.last() {
                    self.last_seq = last.seq;
                }
                let mut frames = Vec::with_capacity(bytes);
                for entry in page.entries {
                    write_sse_frame(&mut frames, &entry);
                }
                self.pending = budget::reserved_bytes(frames, reservation);
            }
            Err(_) => {
                drop((reader_permit, reservation));
                tokio::select! {
                    () = tokio::time::sleep(STORE_RETRY_DELAY) => {}
                    _ = self.stop.changed() => {}
                }
            }
        }
    }

    fn on_broadcast_entry(&mut self, entry: BroadcastEntry) {
        if entry.seq <= self.last_seq {
            return;
        }
        let is_wanted = self.run.is_none_or(|run| run == entry.run);
        match entry.frame {
            // The feed does not carry this entry, so it is read from the store.
            None if is_wanted => self.caught_up = false,
            None => self.last_seq = entry.seq,
            Some(frame) => {
                self.last_seq = entry.seq;
                if is_wanted {
                    self.pending = frame;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &[&'static str]) -> Option<EventsFormat> {
        let mut headers = HeaderMap::new();
        for accept in accept {
            headers.append(header::ACCEPT, HeaderValue::from_static(accept));
        }
        negotiate_format(&headers).ok()
    }

    #[test]
    fn a_page_is_served_if_only_json_is_accepted() {
        assert_eq!(negotiated(&[]), Some(EventsFormat::Stream));
        assert_eq!(negotiated(&["*/*"]), Some(EventsFormat::Stream));
        assert_eq!(negotiated(&["text/event-stream"]), Some(EventsFormat::Stream));
        assert_eq!(negotiated(&["application/json"]), Some(EventsFormat::Page));
        assert_eq!(negotiated(&["application/json, */*;q=0.1"]), Some(EventsFormat::Page));
        assert_eq!(negotiated(&["Application/JSON; charset=utf-8"]), Some(EventsFormat::Page));
        assert_eq!(negotiated(&["application/json", "text/event-stream"]), Some(EventsFormat::Stream));
        assert_eq!(negotiated(&["image/png"]), None);
    }
}
