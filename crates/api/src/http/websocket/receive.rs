//! Receives messages of a WebSocket, in a task of its own.
//!
//! A message of more than [`SMALL_BYTES`] needs a reservation in the budget for received messages before its payload is
//! read. It must then be complete within a timeout, so that a slow client does not keep the reservation.

use std::{
    io::{self, Cursor},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, BufReader},
    sync::mpsc,
    time::{Instant, timeout_at},
};
use tungstenite::protocol::frame::{
    FrameHeader,
    coding::{CloseCode, Control, Data, OpCode},
};

use super::WebSocketInput;
use crate::http::{
    HttpState,
    budget::{ByteBudget, ByteReservation},
};

/// Input that a connection buffers.
pub(super) const BUFFER_BYTES: usize = 4 << 10;
/// Size up to which a message needs no reservation.
const SMALL_BYTES: usize = 16 << 10;
/// Maximum payload of a control frame, by the standard.
const MAX_CONTROL_BYTES: usize = 125;

/// A message from a client.
#[derive(Debug)]
pub(in crate::http) enum ClientMessage {
    Text(ReceivedText),
    Ping(Vec<u8>),
    /// The client has closed the connection.
    Closed,
    /// The connection must be closed with this code and reason.
    Refused(CloseCode, &'static str),
}

/// A text message. Its bytes are not checked for UTF-8.
#[derive(Debug)]
pub(in crate::http) struct ReceivedText {
    pub(in crate::http) bytes: Vec<u8>,
    /// Held as long as the bytes.
    _reservation: Option<ByteReservation>,
}

/// Bounds of the messages of one connection.
#[derive(Clone, Debug)]
pub(in crate::http) struct MessageLimits {
    pub(in crate::http) max_bytes: usize,
    /// Time in which a message that needs a reservation must be complete.
    pub(in crate::http) timeout: Duration,
    pub(in crate::http) credential: Arc<str>,
}

/// The messages of one connection. At most one is buffered. Dropping it ends the task.
#[derive(Debug)]
pub(in crate::http) struct ReceivedMessages(mpsc::Receiver<ClientMessage>);

impl ReceivedMessages {
    pub(in crate::http) fn start(input: WebSocketInput, limits: MessageLimits, interface: HttpState) -> Self {
        let (messages, received) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut reader = MessageReader::new(input, limits, &interface.0.received);
            let forward = async {
                loop {
                    let message = reader.next().await;
                    let is_last = matches!(message, ClientMessage::Closed | ClientMessage::Refused(..));
                    if messages.send(message).await.is_err() || is_last {
                        return;
                    }
                }
            };
            tokio::select! {
                () = forward => {}
                () = messages.closed() => {}
            }
        });
        Self(received)
    }

    pub(in crate::http) async fn next(&mut self) -> ClientMessage {
        self.0.recv().await.unwrap_or(ClientMessage::Closed)
    }
}

struct MessageReader<'a, R> {
    input: BufReader<R>,
    limits: MessageLimits,
    budget: &'a ByteBudget,
    /// The frames of an incomplete message.
    partial: Option<PartialMessage>,
}

#[derive(Default)]
struct PartialMessage {
    bytes: Vec<u8>,
    reservation: Option<ByteReservation>,
    deadline: Option<Instant>,
}

/// Why a connection ends.
enum ReceiveError {
    Io,
    Refused(CloseCode, &'static str),
}

impl From<io::Error> for ReceiveError {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

impl<'a, R: AsyncRead + Unpin> MessageReader<'a, R> {
    fn new(input: R, limits: MessageLimits, budget: &'a ByteBudget) -> Self {
        Self { input: BufReader::with_capacity(BUFFER_BYTES, input), limits, budget, partial: None }
    }

    async fn next(&mut self) -> ClientMessage {
        loop {
            match self.frame().await {
                Ok(Some(message)) => return message,
                Ok(None) => {}
                Err(ReceiveError::Io) => return ClientMessage::Closed,
                Err(ReceiveError::Refused(code, reason)) => return ClientMessage::Refused(code, reason),
            }
        }
    }

    /// Reads one frame. Returns a message if the frame completes one.
    async fn frame(&mut self) -> Result<Option<ClientMessage>, ReceiveError> {
        let deadline = self.partial.as_ref().and_then(|partial| partial.deadline);
        let (header, length) = within(deadline, self.header()).await?;
        let mask = header.mask.ok_or(protocol("a frame has no mask"))?;
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(protocol("extensions are not offered"));
        }
        match header.opcode {
            OpCode::Data(data) => {
                let mut message = self.message(data)?;
                self.reserve(&mut message, length).await?;
                let before = message.bytes.len();
                within(message.deadline, self.payload(&mut message.bytes, length)).await?;
                unmask(message.bytes.get_mut(before..).unwrap_or_default(), mask);
                if !header.is_final {
                    self.partial = Some(message);
                    return Ok(None);
                }
                let PartialMessage { bytes, reservation, .. } = message;
                Ok(Some(ClientMessage::Text(ReceivedText { bytes, _reservation: reservation })))
            }
            OpCode::Control(control) => {
                if length > MAX_CONTROL_BYTES || !header.is_final {
                    return Err(protocol("a control frame is too long"));
                }
                let mut payload = Vec::new();
                within(deadline, self.payload(&mut payload, length)).await?;
                unmask(&mut payload, mask);
                match control {
                    Control::Ping => Ok(Some(ClientMessage::Ping(payload))),
                    Control::Pong => Ok(None),
                    Control::Close => Err(ReceiveError::Refused(CloseCode::Normal, "")),
                    Control::Reserved(_) => Err(protocol("an unknown control frame")),
                }
            }
        }
    }

    async fn header(&mut self) -> Result<(FrameHeader, usize), ReceiveError> {
        let mut head = [0; 14];
        let (first, rest) = head.split_at_mut(2);
        self.input.read_exact(first).await?;
        let length_bytes = match first.last().map(|byte| byte & 0x7f) {
            Some(126) => 2,
            Some(127) => 8,
            Some(_) | None => 0,
        };
        let mask_bytes = if first.last().is_some_and(|byte| byte & 0x80 != 0) { 4 } else { 0 };
        let rest = rest.get_mut(..length_bytes + mask_bytes).unwrap_or_default();
        self.input.read_exact(rest).await?;
        match FrameHeader::parse(&mut Cursor::new(head)) {
            Ok(Some((header, length))) => Ok((header, usize::try_from(length).unwrap_or(usize::MAX))),
            Ok(None) | Err(_) => Err(protocol("a frame has an invalid header")),
        }
    }

    /// Returns the message that a data frame begins or continues.
    fn message(&mut self, data: Data) -> Result<PartialMessage, ReceiveError> {
        match (data, self.partial.take()) {
            (Data::Text, None) => Ok(PartialMessage::default()),
            (Data::Continue, Some(partial)) => Ok(partial),
            (Data::Binary, None) => {
                Err(ReceiveError::Refused(CloseCode::Unsupported, "one JSON object a text message, please"))
            }
            (Data::Text | Data::Binary, Some(_)) => Err(protocol("a message begins inside another")),
            (Data::Continue, None) => Err(protocol("a continuation of no message")),
            (Data::Reserved(_), _) => Err(protocol("an unknown data frame")),
        }
    }

    /// Checks the size of the message with the next frame, and reserves memory if it is large.
    async fn reserve(&mut self, message: &mut PartialMessage, length: usize) -> Result<(), ReceiveError> {
        let total = message.bytes.len().saturating_add(length);
        if total > self.limits.max_bytes {
            return Err(ReceiveError::Refused(CloseCode::Size, "the message is too large"));
        }
        if total > SMALL_BYTES && message.reservation.is_none() {
            message.reservation = self.budget.reserve(&self.limits.credential, self.limits.max_bytes).await;
            message.deadline = Some(Instant::now() + self.limits.timeout);
        }
        Ok(())
    }

    async fn payload(&mut self, bytes: &mut Vec<u8>, length: usize) -> Result<(), ReceiveError> {
        bytes.reserve_exact(length);
        let count = (&mut self.input).take(length as u64).read_to_end(bytes).await?;
        if count < length { Err(ReceiveError::Io) } else { Ok(()) }
    }
}

fn protocol(reason: &'static str) -> ReceiveError {
    ReceiveError::Refused(CloseCode::Protocol, reason)
}

async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, ReceiveError>>,
) -> Result<T, ReceiveError> {
    match deadline {
        Some(deadline) => timeout_at(deadline, work)
            .await
            .unwrap_or(Err(ReceiveError::Refused(CloseCode::Policy, "the message took too long"))),
        None => work.await,
    }
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    for (byte, mask) in payload.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests;
