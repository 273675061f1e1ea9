//! Sends messages of a WebSocket. The payload is written from the caller's memory and is not copied.

use std::io;

use hyper::body::Buf;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tungstenite::protocol::frame::{
    FrameHeader,
    coding::{CloseCode, Control, Data, OpCode},
};

#[derive(Debug)]
pub(in crate::http) struct MessageWriter<W> {
    output: W,
    /// Whether a frame is written in part: its write failed or was cancelled. No further frame can follow.
    is_incomplete: bool,
}

impl<W: AsyncWrite + Unpin> MessageWriter<W> {
    pub(in crate::http) fn new(output: W) -> Self {
        Self { output, is_incomplete: false }
    }

    /// Sends one text message. The payload must be UTF-8.
    pub(in crate::http) async fn text(&mut self, payload: &[u8]) -> io::Result<()> {
        self.frame(OpCode::Data(Data::Text), payload).await
    }

    pub(in crate::http) async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.frame(OpCode::Control(Control::Pong), payload).await
    }

    /// Sends a close frame. The reason has at most 123 bytes.
    pub(in crate::http) async fn close(&mut self, code: CloseCode, reason: &str) -> io::Result<()> {
        let mut payload = u16::from(code).to_be_bytes().to_vec();
        payload.extend_from_slice(reason.as_bytes());
        self.frame(OpCode::Control(Control::Close), &payload).await
    }

    async fn frame(&mut self, opcode: OpCode, payload: &[u8]) -> io::Result<()> {
        if std::mem::replace(&mut self.is_incomplete, true) {
            return Err(io::Error::other("the previous frame is incomplete"));
        }
        let mut head = Vec::new();
        FrameHeader { opcode, ..FrameHeader::default() }
            .format(payload.len() as u64, &mut head)
            .map_err(io::Error::other)?;
        self.output.write_all_buf(&mut head.as_slice().chain(payload)).await?;
        self.output.flush().await?;
        self.is_incomplete = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn no_frame_follows_one_whose_write_was_cancelled() {
        let (output, mut input) = tokio::io::duplex(16);
        let mut writer = MessageWriter::new(output);
        tokio::select! {
            biased;
            _ = writer.text(&[b'x'; 100]) => panic!("it does not fit"),
            () = std::future::ready(()) => {}
        }
        assert!(writer.close(CloseCode::Policy, "bye").await.is_err());
        drop(writer);
        let mut written = Vec::new();
        input.read_to_end(&mut written).await.unwrap();
        assert_eq!((written.len(), written[..3].to_vec()), (16, b"\x81\x64x".to_vec()));
    }

    #[tokio::test]
    async fn a_message_is_one_frame_without_a_mask() {
        let mut writer = MessageWriter::new(Vec::new());
        writer.text(b"{}").await.unwrap();
        writer.close(CloseCode::Away, "bye").await.unwrap();
        writer.text(&[b'x'; 70_000]).await.unwrap();
        let (small, rest) = writer.output.split_at(4);
        assert_eq!(small, b"\x81\x02{}");
        let (close, large) = rest.split_at(7);
        assert_eq!(close, b"\x88\x05\x03\xe9bye");
        assert_eq!((&large[..10], large.len()), (&b"\x81\x7f\0\0\0\0\0\x01\x11\x70"[..], 70_010));
    }
}
