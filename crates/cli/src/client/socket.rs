//! Connections to this home's daemon: its Unix socket, or TCP for a daemon of an earlier version without a socket.

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use abide_os::{
    poll::{wait_readable, wait_writable},
    stream_socket::StreamSocket,
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
        Ok(Some(SocketTransport { socket: socket.into(), buffers }))
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct SocketTransport {
    socket: StreamSocket,
    buffers: LazyBuffers,
}

/// The condition for which a transport waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketReadiness {
    Readable,
    Writable,
}

impl SocketTransport {
    fn wait(&self, readiness: SocketReadiness, timeout: NextTimeout) -> Result<(), Error> {
        let time = timeout.not_zero().map(|time| *time);
        loop {
            let is_ready = match readiness {
                SocketReadiness::Readable => {
                    wait_readable(&[self.socket.as_fd()], time).map(|ready| ready.contains(&true))
                }
                SocketReadiness::Writable => wait_writable(&self.socket, time),
            };
            match is_ready {
                Ok(false) => return Err(Error::Timeout(reason(timeout))),
                Ok(true) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
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
            match self.socket.send(rest) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(SocketReadiness::Writable, timeout)?
                }
                // A daemon that rejects a request early has already sent its response, which is read next.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        loop {
            match self.socket.receive(self.buffers.input_append_buf()) {
                Ok(count) => {
                    self.buffers.input_appended(count);
                    return Ok(count > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(SocketReadiness::Readable, timeout)?
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        // Unread data before a request is unexpected.
        self.socket.is_idle()
    }
}
