//! A connection between a client and a keeper: frames over a Unix socket, without blocking.
//!
//! A frame is a little-endian length and that many bytes of `postcard`. A length beyond the bound ends the connection,
//! because the start of the next frame is unknown after it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::KeeperError;

/// Maximum length of a frame in bytes: the largest request or result, and room for its other fields.
pub const MAX_FRAME_BYTES: usize = 80 << 20;

/// A framed connection with an incoming and an outgoing buffer.
#[derive(Debug)]
pub struct FramedSocket {
    /// Shared with threads that wait for the socket while another one uses the connection.
    socket: Arc<OwnedFd>,
    incoming: Vec<u8>,
    consumed_bytes: usize,
    outgoing: Vec<u8>,
    sent_bytes: usize,
    closed: bool,
}

/// The result of [`FramedSocket::receive_up_to`].
#[derive(Debug)]
pub enum ReceiveOutcome<M> {
    Message(M),
    /// No data, or the beginning of a message.
    Incomplete,
    /// The beginning of a message with this many bytes, which exceeds the bound.
    TooLarge(usize),
}

impl FramedSocket {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Arc::new(socket),
            incoming: Vec::new(),
            consumed_bytes: 0,
            outgoing: Vec::new(),
            sent_bytes: 0,
            closed: false,
        }
    }

    /// The descriptor, for waiting.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Queues a message and sends as much as the socket accepts now.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), KeeperError> {
        encode(message, &mut self.outgoing)?;
        self.flush()
    }

    /// Sends a message whose last field is a byte string. The field is empty in `message` and is sent with `bytes` as
    /// its value.
    ///
    /// The bytes are not copied if the socket accepts them at once.
    pub(crate) fn send_with_bytes(
        &mut self,
        message: &impl Serialize,
        bytes: &[u8],
    ) -> Result<(), KeeperError> {
        let start = self.outgoing.len();
        encode(message, &mut self.outgoing)?;
        // A byte string is preceded by its length as a varint. The length of the empty one is a single zero byte.
        self.outgoing.pop();
        let mut length = bytes.len();
        while length >= 0x80 {
            self.outgoing.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
            length >>= 7;
        }
        self.outgoing.push(u8::try_from(length).unwrap_or(0));
        write_frame_length(&mut self.outgoing, start, bytes.len())?;
        let mut taken = 0;
        if start == self.sent_bytes {
            let pending = self.outgoing.get(self.sent_bytes..).unwrap_or_default();
            let both = [IoSlice::new(pending), IoSlice::new(bytes)];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            if let Ok(count) = sendmsg(&self.socket, &both, &mut SendAncillaryBuffer::default(), flags) {
                let head = count.min(pending.len());
                self.sent_bytes += head;
                taken = count - head;
            }
        }
        let rest = bytes.get(taken..).unwrap_or_default();
        self.outgoing.extend_from_slice(rest);
        self.flush()
    }

    /// Sends as much as the socket accepts now.
    pub fn flush(&mut self) -> Result<(), KeeperError> {
        while self.sent_bytes < self.outgoing.len() {
            let pending = self.outgoing.get(self.sent_bytes..).unwrap_or_default();
            match send(&self.socket, pending, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.sent_bytes += count,
                Err(Errno::AGAIN) => {
                    // With a reader that always lags a little, the buffer would never become empty.
                    if self.sent_bytes > MAX_IDLE_BUFFER_BYTES && self.sent_bytes > self.unsent_bytes() {
                        self.outgoing.drain(..self.sent_bytes);
                        self.sent_bytes = 0;
                    }
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    // The peer may have sent its last messages before it closed the connection.
                    while matches!(self.fill(), Ok(true)) {}
                    self.closed = true;
                    return Err(KeeperError::system("cannot write to the keeper socket", error));
                }
            }
        }
        self.sent_bytes = 0;
        // An idle keeper must not keep the memory of a large result.
        if self.outgoing.capacity() > MAX_IDLE_BUFFER_BYTES {
            self.outgoing = Vec::new()
        } else {
            self.outgoing.clear()
        }
        Ok(())
    }

    /// Number of unsent bytes.
    pub fn unsent_bytes(&self) -> usize {
        self.outgoing.len() - self.sent_bytes
    }

    /// Whether the peer has closed the connection and all its messages have been received.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The next complete message, after reading from the socket if necessary.
    pub fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, KeeperError> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(Some(message));
            }
            if self.closed || !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Like [`Self::receive`], but reads no further bytes of a frame that is longer than the bound. The sender keeps
    /// the rest until the caller has room for it.
    pub fn receive_up_to<M: DeserializeOwned>(
        &mut self,
        bound: usize,
    ) -> Result<ReceiveOutcome<M>, KeeperError> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(ReceiveOutcome::Message(message));
            }
            let length = frame_length(self.incoming.get(self.consumed_bytes..).unwrap_or_default());
            if length > bound {
                return Ok(ReceiveOutcome::TooLarge(length));
            }
            if self.closed || !self.fill()? {
                return Ok(ReceiveOutcome::Incomplete);
            }
        }
    }

    /// The next message that has already been read.
    ///
    /// After a wake-up the caller has to receive all of these, because buffered messages cause no further wake-up.
    pub fn buffered<M: DeserializeOwned>(&mut self) -> Result<Option<M>, KeeperError> {
        let Some((message, used)) = decode(self.incoming.get(self.consumed_bytes..).unwrap_or_default())?
        else {
            return Ok(None);
        };
        self.consumed_bytes += used;
        if self.consumed_bytes == self.incoming.len() {
            self.consumed_bytes = 0;
            if self.incoming.capacity() > MAX_IDLE_BUFFER_BYTES {
                self.incoming = Vec::new();
            } else {
                self.incoming.clear();
            }
        }
        Ok(Some(message))
    }

    /// Waits for the next message with a timeout.
    pub fn wait<M: DeserializeOwned>(&mut self, timeout_ms: u64) -> Result<Option<M>, KeeperError> {
        let deadline = crate::clock::boottime_micros() + timeout_ms * 1_000;
        loop {
            if let Some(message) = self.receive()? {
                return Ok(Some(message));
            }
            let left = deadline.saturating_sub(crate::clock::boottime_micros());
            if self.closed || left == 0 {
                return Ok(None);
            }
            let events = if self.unsent_bytes() > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let timeout = Timespec {
                tv_sec: i64::try_from(left / 1_000_000).unwrap_or(0),
                tv_nsec: i64::try_from(left % 1_000_000).unwrap_or(0) * 1_000,
            };
            match poll(&mut [PollFd::new(&self.socket, events)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(KeeperError::system("cannot wait for the keeper", error)),
            }
            self.flush()?;
        }
    }

    fn fill(&mut self) -> Result<bool, KeeperError> {
        if self.consumed_bytes > 0 {
            self.incoming.drain(..self.consumed_bytes);
            self.consumed_bytes = 0;
        }
        let buffered = self.incoming.len();
        self.incoming.reserve(missing_frame_bytes(&self.incoming).clamp(MIN_READ_BYTES, MAX_READ_BYTES));
        let room = rustix::buffer::spare_capacity(&mut self.incoming);
        let outcome = recv(&self.socket, room, RecvFlags::DONTWAIT);
        let count = self.incoming.len() - buffered;
        match outcome {
            Ok(_) if count > 0 => Ok(true),
            Ok(_) | Err(Errno::CONNRESET | Errno::PIPE) => {
                self.closed = true;
                Ok(false)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(KeeperError::system("cannot read from the keeper socket", error)),
        }
    }
}

impl AsFd for FramedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const MAX_IDLE_BUFFER_BYTES: usize = 64 << 10;
const MIN_READ_BYTES: usize = 16 << 10;
const MAX_READ_BYTES: usize = 1 << 20;

/// Number of missing bytes of the first frame.
fn missing_frame_bytes(bytes: &[u8]) -> usize {
    (frame_length(bytes) + 4).saturating_sub(bytes.len())
}

/// The length in the header of the first frame; 0 if the header is incomplete.
fn frame_length(bytes: &[u8]) -> usize {
    let header = bytes.first_chunk::<4>();
    header.map_or(0, |header| usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX - 4))
}

pub fn encode(message: &impl Serialize, out: &mut Vec<u8>) -> Result<(), KeeperError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let encoded = postcard::to_io(message, &mut *out).map(|_| ());
    if encoded.is_err() {
        out.truncate(start);
        return Err(KeeperError::Protocol("a message is too long"));
    }
    write_frame_length(out, start, 0)
}

/// Writes the length of the frame that begins at `start`; `more` bytes are still to follow.
fn write_frame_length(out: &mut Vec<u8>, start: usize, following_bytes: usize) -> Result<(), KeeperError> {
    let length = out.len() - start - 4 + following_bytes;
    let header = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME_BYTES);
    match (header, out.get_mut(start..start + 4)) {
        (Some(header), Some(header_bytes)) => header_bytes.copy_from_slice(&header.to_le_bytes()),
        (None, _) | (_, None) => {
            out.truncate(start);
            return Err(KeeperError::Protocol("a message is too long"));
        }
    }
    Ok(())
}

/// The first complete frame and its size in bytes; None if it is incomplete.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<Option<(M, usize)>, KeeperError> {
    let Some((header, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
    if length > MAX_FRAME_BYTES {
        return Err(KeeperError::Protocol("a frame is too long"));
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let message =
        postcard::from_bytes(body).map_err(|_| KeeperError::Protocol("a frame is not a message"))?;
    Ok(Some((message, length + 4)))
}

/// A connected pair of sockets with close-on-exec.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{
        KeeperRequest, KeeperResponse, OutputChunk, OutputStream, TaggedRequest, TaggedResponse,
    };

    #[test]
    fn a_reader_that_is_always_behind_does_not_make_the_buffer_grow() {
        let (one, other) = socket_pair().unwrap();
        let (mut sender, mut receiver) = (FramedSocket::new(one), FramedSocket::new(other));
        let bytes = vec![7; 64 << 10];
        let (mut sent, mut received) = (0u64, 0u64);
        while received < 2_000 {
            while sender.unsent_bytes() <= 1 << 20 {
                let head = TaggedResponse {
                    tag: 1,
                    news: KeeperResponse::Output(OutputChunk {
                        job: 0,
                        stream: OutputStream::Stdout,
                        offset: sent,
                        bytes: Vec::new(),
                    }),
                };
                sender.send_with_bytes(&head, &bytes).unwrap();
                sent += 1;
            }
            let answer: TaggedResponse = receiver.receive().unwrap().expect("something is on its way");
            let KeeperResponse::Output(output) = answer.news else { panic!("another message arrived") };
            assert_eq!((output.offset, output.bytes.len()), (received, bytes.len()));
            received += 1;
            sender.flush().unwrap();
            assert!(sender.outgoing.capacity() < 8 << 20, "{} bytes are held", sender.outgoing.capacity());
        }
    }

    #[test]
    fn a_large_frame_is_read_only_when_there_is_room_for_it() {
        let (one, other) = socket_pair().unwrap();
        let (mut sender, mut receiver) = (FramedSocket::new(one), FramedSocket::new(other));
        let output = |bytes| OutputChunk { job: 0, stream: OutputStream::Stdout, offset: 0, bytes };
        sender.send(&TaggedResponse { tag: 1, news: KeeperResponse::Output(output(vec![1; 100])) }).unwrap();
        sender
            .send(&TaggedResponse { tag: 2, news: KeeperResponse::Output(output(vec![2; 3 << 20])) })
            .unwrap();
        let small = receiver.receive_up_to::<TaggedResponse>(64 << 10).unwrap();
        assert!(matches!(small, ReceiveOutcome::Message(TaggedResponse { tag: 1, .. })), "{small:?}");
        for _ in 0..100 {
            sender.flush().unwrap();
            let large = receiver.receive_up_to::<TaggedResponse>(64 << 10).unwrap();
            assert!(matches!(large, ReceiveOutcome::TooLarge(length) if length > 3 << 20), "{large:?}");
        }
        assert!(receiver.incoming.capacity() < 1 << 20, "{} bytes are held", receiver.incoming.capacity());
        loop {
            sender.flush().unwrap();
            match receiver.receive_up_to::<TaggedResponse>(4 << 20).unwrap() {
                ReceiveOutcome::Message(answer) => break assert_eq!(answer.tag, 2),
                ReceiveOutcome::Incomplete => {}
                ReceiveOutcome::TooLarge(length) => panic!("{length} bytes fit"),
            }
        }
    }

    proptest! {
        #[test]
        fn frames_cut_anywhere_arrive_whole_and_in_order(
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..8),
            cut in 1usize..97,
        ) {
            let mut bytes = Vec::new();
            for (tag, text) in texts.iter().enumerate() {
                encode(&TaggedRequest { tag: tag as u64, act: KeeperRequest::Hello(text.clone()) }, &mut bytes).unwrap();
            }
            let (mut arrived, mut got) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(cut) {
                arrived.extend_from_slice(piece);
                while let Some((order, used)) = decode::<TaggedRequest>(&arrived).unwrap() {
                    arrived.drain(..used);
                    let KeeperRequest::Hello(text) = order.act else { panic!("another order arrived") };
                    got.push(text);
                }
            }
            prop_assert_eq!(got, texts);
        }

        #[test]
        fn bytes_sent_beside_their_message_arrive_in_it(lengths in proptest::collection::vec(0usize..70_000, 1..6)) {
            let (one, other) = socket_pair().unwrap();
            let (mut sender, mut receiver) = (FramedSocket::new(one), FramedSocket::new(other));
            for (offset, length) in lengths.iter().enumerate() {
                let chunk = |bytes| TaggedResponse {
                    tag: 300,
                    news: KeeperResponse::Output(OutputChunk { job: 1, stream: OutputStream::Stderr, offset: offset as u64, bytes }),
                };
                sender.send_with_bytes(&chunk(Vec::new()), &vec![7; *length]).unwrap();
            }
            for (expected, length) in lengths.iter().enumerate() {
                let answer: TaggedResponse = loop {
                    sender.flush().unwrap();
                    if let Some(answer) = receiver.receive().unwrap() {
                        break answer;
                    }
                };
                let KeeperResponse::Output(output) = answer.news else { panic!("another message arrived") };
                prop_assert_eq!((answer.tag, output.offset), (300, expected as u64));
                prop_assert_eq!(output.bytes, vec![7; *length]);
            }
        }

        #[test]
        fn garbage_is_refused_or_waited_for_but_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = decode::<TaggedRequest>(&bytes);
        }
    }
}
