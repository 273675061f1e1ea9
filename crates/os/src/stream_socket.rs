//! A connected stream socket of any family. Calls do not block and raise no SIGPIPE.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

/// A connected socket. [`crate::poll`] waits until it is ready.
#[derive(Debug)]
pub struct StreamSocket(OwnedFd);

impl StreamSocket {
    /// Sends the first bytes. Returns their number, or [`io::ErrorKind::WouldBlock`].
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(retry(|| send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))?)
    }

    /// Receives bytes. Returns their number, 0 at the end of the stream, or [`io::ErrorKind::WouldBlock`].
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(retry(|| recv(&self.0, &mut *buffer, RecvFlags::DONTWAIT))?.0)
    }

    /// Returns whether the stream is open and has no unread bytes.
    pub fn is_idle(&self) -> bool {
        let peeked = recv(&self.0, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(Errno::AGAIN))
    }
}

impl From<OwnedFd> for StreamSocket {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_arrive_and_an_ended_stream_is_not_idle() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) =
            (StreamSocket::from(OwnedFd::from(ours)), StreamSocket::from(OwnedFd::from(theirs)));
        let mut buffer = [0; 8];
        assert!(ours.is_idle());
        assert_eq!(ours.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(theirs.send(b"abc").unwrap(), 3);
        assert!(!ours.is_idle());
        assert_eq!(ours.receive(&mut buffer).unwrap(), 3);
        drop(theirs);
        assert!(!ours.is_idle());
        assert_eq!(ours.receive(&mut buffer).unwrap(), 0);
        assert_eq!(ours.send(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
