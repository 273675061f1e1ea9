//! The signals that a keeper receives. The loop reacts to them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::signal;

/// The signal handlers of a keeper. Handlers for the other signals restore their defaults in the child, even if the
/// parent ignored them. They also keep SIGHUP of a terminal from ending the keeper.
#[derive(Debug)]
pub(super) struct KeeperSignals {
    pub(super) wakeup: OwnedFd,
    pub(super) end_requested: Arc<AtomicBool>,
}

impl KeeperSignals {
    pub(super) fn install() -> std::io::Result<Self> {
        let (reader, writer) = crate::framed_socket::socket_pair()?;
        let term_writer = writer.try_clone()?;
        signal_hook::low_level::pipe::register(signal::SIGCHLD, writer)?;
        signal_hook::low_level::pipe::register(signal::SIGTERM, term_writer)?;
        let end = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal::SIGTERM, Arc::clone(&end))?;
        let ignored = Arc::new(AtomicBool::new(false));
        for number in [
            signal::SIGINT,
            signal::SIGQUIT,
            signal::SIGHUP,
            signal::SIGUSR1,
            signal::SIGUSR2,
            signal::SIGALRM,
            signal::SIGTSTP,
            signal::SIGTTIN,
            signal::SIGTTOU,
            signal::SIGURG,
            signal::SIGCONT,
            signal::SIGWINCH,
        ] {
            signal_hook::flag::register(number, Arc::clone(&ignored))?;
        }
        Ok(Self { wakeup: reader, end_requested: end })
    }
}
