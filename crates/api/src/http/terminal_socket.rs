//! A JSON-RPC conversation over a WebSocket, with flow control.
//!
//! A client that does not read applies backpressure to the sessions of its calls until the server's timeout disconnects
//! it. Responses and streams count alike. Three kinds of memory are bounded, for all clients together: requests that wait
//! for their replies ([`WaitingRequests`]), events that wait to be serialised ([`ClientBacklog`]), and serialised output
//! that waits to be sent (a reservation in the budget for responses).

use std::{sync::Arc, time::Duration};

use abide_terminal::{ClientFlow, EventListener, ExecChunk, OutputChunk, RuntimeClient, TerminalEvent};
use tokio::{
    io::AsyncWrite,
    sync::{
        mpsc::{UnboundedReceiver, unbounded_channel},
        watch,
    },
    time::timeout,
};

use super::{
    HttpState, StopMode,
    budget::ByteReservation,
    credential_watch::CredentialWatch,
    terminal_backlog::{ClientBacklog, WaitingRequests},
    terminals::serialized_bytes,
    websocket::{ClientMessage, CloseCode, MessageLimits, MessageWriter, ReceivedMessages, WebSocketStream},
};
use crate::rpc::RpcConnection;

/// Memory up to which output is serialised without a reservation, so that small responses never wait.
const SMALL_BYTES: usize = 16 << 10;
/// Bytes of a stream that are serialised in at most [`SMALL_BYTES`].
const SMALL_CHUNK_BYTES: usize = SMALL_BYTES / 16;

/// Time limit for the close frame of a connection whose credential has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn serve(interface: HttpState, mut watch: CredentialWatch, stream: WebSocketStream) {
    let terminals = interface.0.terminals.clone();
    let client = terminals.register_client();
    let load = Arc::new(ClientBacklog::new(interface.clone()));
    let (sender, receiver) = unbounded_channel();
    let listener: EventListener = {
        let load = load.clone();
        Arc::new(move |event| {
            let (flow, bytes) = (load.add(&event), event.output_bytes());
            if sender.send(event).is_ok() {
                return flow;
            }
            // A disconnected client pauses no session; the output of its commands is in their spools.
            load.remove(bytes);
            ClientFlow::Continue
        })
    };
    let (input, output) = tokio::io::split(stream);
    let limits = MessageLimits {
        max_bytes: interface.0.settings.max_body_bytes,
        timeout: Duration::from_secs(u64::from(interface.0.settings.idle_timeout_sec)),
        credential: watch.principal().token.clone(),
    };
    let received = ReceivedMessages::start(input, limits, interface.clone());
    let mut events = PendingEvents { receiver, next: None };
    let mut writer = MessageWriter::new(output);
    let conversation = TerminalConversation {
        interface,
        watch: watch.clone(),
        client,
        load: load.clone(),
        listener,
        received,
        talk: RpcConnection::new(client),
    };
    // The end of the credential is examined first at each poll, also while the conversation waits for its client.
    tokio::select! {
        biased;
        end = watch.ended() => {
            // A client that does not read gets no close frame.
            timeout(CLOSE_TIMEOUT, writer.close(CloseCode::Policy, end.reason())).await.ok();
        }
        () = conversation.run(&mut events, &mut writer) => {}
    }
    events.receiver.close();
    while let Some(event) = events.take() {
        load.remove(event.output_bytes());
    }
    terminals.remove_client(client);
}

/// The conversation with one client. It may be cancelled at any time; its events then stay in [`PendingEvents`].
struct TerminalConversation {
    interface: HttpState,
    watch: CredentialWatch,
    client: RuntimeClient,
    load: Arc<ClientBacklog>,
    listener: EventListener,
    received: ReceivedMessages,
    talk: RpcConnection,
}

impl TerminalConversation {
    async fn run(mut self, events: &mut PendingEvents, writer: &mut MessageWriter<impl AsyncWrite + Unpin>) {
        let terminals = self.interface.0.terminals.clone();
        let mut stop = self.interface.0.stop.subscribe();
        let mut waiting = WaitingRequests::new(self.interface.clone());
        loop {
            // Memory for a large response is reserved before it is serialised, and released when it is sent.
            let mut reservation: Option<ByteReservation> = None;
            waiting.set(self.talk.waiting_bytes());
            let takes_requests = self.load.takes_requests() && waiting.takes_requests();
            tokio::select! {
                message = self.received.next(), if takes_requests => match message {
                    ClientMessage::Text(text) => {
                        if let Err(end) = self.watch.check_message() {
                            // The client may have closed the connection already.
                            writer.close(CloseCode::Policy, end.reason()).await.ok();
                            return;
                        }
                        self.talk.on_line(&text.bytes, |call| {
                            terminals.call_for(call, self.listener.clone());
                        });
                    }
                    ClientMessage::Ping(payload) => {
                        if writer.pong(&payload).await.is_err() {
                            return;
                        }
                    }
                    ClientMessage::Refused(code, reason) => {
                        // The client may have closed the connection already.
                        writer.close(code, reason).await.ok();
                        return;
                    }
                    ClientMessage::Closed => return,
                },
                Some(event) = events.next() => {
                    let Some(reserved) = self.reserve(events, event).await else { continue };
                    reservation = reserved.reservation;
                    let output_bytes = serialise(&mut self.talk, reserved.event, events, reserved.bytes);
                    if self.load.remove(output_bytes) {
                        terminals.resume_client(self.client);
                    }
                }
                () = stopped(&mut stop) => {
                    // The client may have closed the connection already.
                    writer.close(CloseCode::Away, "the daemon is stopping").await.ok();
                    return;
                }
            }
            if let Some(reservation) = &mut reservation {
                reservation.shrink_to(self.talk.output.len());
            }
            if tell(writer, &mut self.talk).await.is_err() {
                return;
            }
        }
    }

    /// Reserves memory to serialise an event. A chunk that must wait for memory is cut to a size that needs none.
    async fn reserve(&self, events: &mut PendingEvents, event: TerminalEvent) -> Option<ReservedEvent> {
        let (budget, credential) = (&self.interface.0.budget, &self.watch.principal().token);
        let bytes = serialized_bytes(&event);
        if bytes <= SMALL_BYTES {
            return Some(ReservedEvent { event, bytes, reservation: None });
        }
        if let Some(reservation) = budget.try_reserve(credential, bytes) {
            return Some(ReservedEvent { event, bytes, reservation: Some(reservation) });
        }
        let event = events.keep_rest_of_chunk(event);
        let bytes = serialized_bytes(&event);
        if bytes <= SMALL_BYTES {
            return Some(ReservedEvent { event, bytes, reservation: None });
        }
        // The event was not cut, so `next` is free. There it is still counted if the wait is cancelled.
        events.next = Some(event);
        let reservation = budget.reserve(credential, bytes).await;
        Some(ReservedEvent { event: events.next.take()?, bytes, reservation })
    }
}

/// An event with the memory for its serialised form.
struct ReservedEvent {
    event: TerminalEvent,
    /// Size of the serialised form.
    bytes: usize,
    reservation: Option<ByteReservation>,
}

async fn stopped(stop: &mut watch::Receiver<StopMode>) {
    // An error means that the sender is dropped: the daemon stops.
    stop.wait_for(|stop| *stop != StopMode::No).await.ok();
}

/// Events that are not serialised yet.
struct PendingEvents {
    receiver: UnboundedReceiver<TerminalEvent>,
    /// Taken before the others.
    next: Option<TerminalEvent>,
}

impl PendingEvents {
    async fn next(&mut self) -> Option<TerminalEvent> {
        match self.next.take() {
            Some(event) => Some(event),
            None => self.receiver.recv().await,
        }
    }

    fn take(&mut self) -> Option<TerminalEvent> {
        self.next.take().or_else(|| self.receiver.try_recv().ok())
    }

    /// Cuts a chunk to a size that needs no reservation, so that a stream continues while there is no budget. Other
    /// events are returned unchanged.
    fn keep_rest_of_chunk(&mut self, event: TerminalEvent) -> TerminalEvent {
        let TerminalEvent::Chunk(ticket, ExecChunk::Output(mut chunk)) = event else { return event };
        if chunk.bytes.len() > SMALL_CHUNK_BYTES {
            let rest = OutputChunk {
                offset: chunk.offset + SMALL_CHUNK_BYTES as u64,
                bytes: chunk.bytes.split_off(SMALL_CHUNK_BYTES),
                ..chunk
            };
            self.next = Some(TerminalEvent::Chunk(ticket, ExecChunk::Output(rest)));
            chunk.bytes.shrink_to_fit();
        }
        TerminalEvent::Chunk(ticket, ExecChunk::Output(chunk))
    }
}

/// Serialises an event of this size, and further ones as long as they need no reservation together. Returns the number
/// of output bytes.
fn serialise(
    talk: &mut RpcConnection,
    first: TerminalEvent,
    events: &mut PendingEvents,
    first_bytes: usize,
) -> usize {
    let (mut output_bytes, mut total_bytes) = (first.output_bytes(), first_bytes);
    talk.on_event(first);
    while total_bytes < SMALL_BYTES
        && let Some(event) = events.take()
    {
        total_bytes += serialized_bytes(&event);
        if total_bytes > SMALL_BYTES {
            events.next = Some(event);
            break;
        }
        output_bytes += event.output_bytes();
        talk.on_event(event);
    }
    output_bytes
}

/// Sends each line as one message.
async fn tell(
    writer: &mut MessageWriter<impl AsyncWrite + Unpin>,
    talk: &mut RpcConnection,
) -> std::io::Result<()> {
    let lines = std::mem::take(&mut talk.output);
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        // The lines are JSON that we serialised, so they are UTF-8.
        writer.text(line).await?;
    }
    Ok(())
}
