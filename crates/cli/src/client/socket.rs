//! Connections to this home's daemon: its Unix socket, or TCP for a daemon of an earlier version without a socket.

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use ureq::{
    Error, Timeout,
    unversioned::transport::{Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport},
};

use crate::up::socket;

#[derive(Debug)]
pub(super) struct HomeConnector {
    pub(super) home: PathBuf,
}

impl Connector for HomeConnector {
    type Out = SocketTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<SocketTransport>, Error> {
        let socket = match socket::connect(&self.home) {
            Ok(stream) => OwnedFd::from(stream),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                let timeout = details.timeout.not_zero().map_or(CONNECT_TIMEOUT, |timeout| *timeout);
                let address = details.addrs.first().ok_or(Error::HostNotFound)?;
                let stream = TcpStream::connect_timeout(address, timeout)?;
                // If this fails, requests are only slower.
                stream.set_nodelay(true).ok();
                OwnedFd::from(stream)
            }
            Err(error) => return Err(error.into()),
        };
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(SocketTransport { socket, buffers }))
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct SocketTransport {
    socket: OwnedFd,
    buffers: LazyBuffers,
}

impl SocketTransport {
    fn wait(&self, flags: PollFlags, timeout: NextTimeout) -> Result<(), Error> {
        let timespec = timeout.not_zero().map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        loop {
            match poll(&mut [PollFd::new(&self.socket, flags)], timespec.as_ref()) {
                Ok(0) => return Err(Error::Timeout(reason(timeout))),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }
}

fn reason(timeout: NextTimeout) -> Timeout {
    timeout.reason
}

impl Transport for SocketTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let mut sent = 0;
        while sent < amount {
            let rest = self.buffers.output().get(sent..amount).unwrap_or_default();
            match send(self.socket.as_fd(), rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, timeout)?,
                // A daemon that rejects a request early has already sent its response, which is read next.
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        loop {
            match recv(&self.socket, self.buffers.input_append_buf(), RecvFlags::DONTWAIT) {
                Ok((count, _)) => {
                    self.buffers.input_appended(count);
                    return Ok(count > 0);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, timeout)?,
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        let peeked = recv(&self.socket, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        // Any other result is the end of the stream or unexpected data.
        matches!(peeked, Err(Errno::AGAIN))
    }
}
