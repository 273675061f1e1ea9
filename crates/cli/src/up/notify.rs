//! Notifies the service manager of readiness and shutdown: one datagram to the socket that it names.
//!
//! Without a socket nothing is sent.

use std::os::{
    linux::net::SocketAddrExt,
    unix::net::{SocketAddr, UnixDatagram},
};

use crate::home;

/// Recovery is complete and requests are served.
pub(super) fn ready() {
    tell(home::variable(SOCKET).as_deref(), "READY=1\nSTATUS=ready\n");
}

pub(super) fn stopping() {
    tell(home::variable(SOCKET).as_deref(), "STOPPING=1\n");
}

/// Environment variable with the path of the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

fn tell(socket: Option<&str>, text: &str) {
    let Some(socket) = socket else { return };
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(socket),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address));
    if let Err(error) = told {
        tracing::warn!(%error, "service manager not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_it_on_a_path_and_on_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("abide-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        tell(path.to_str(), "READY=1\n");
        tell(Some(&format!("@{name}")), "READY=1\n");
        for socket in [by_path, by_name] {
            let mut heard = [0; 64];
            let length = socket.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1\n");
        }
    }

    #[test]
    fn nobody_to_tell_and_a_manager_that_is_gone_are_no_trouble() {
        tell(None, "READY=1\n");
        tell(Some("/nowhere/to/be/found"), "READY=1\n");
    }
}
