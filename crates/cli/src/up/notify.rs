//! Notifies the service manager of readiness and shutdown: one datagram to the socket that it names.
//!
//! Without a socket nothing is sent. The crate `sd-notify` (0.5) is not used, because it does not support sockets with an
//! abstract name (`@…`).

use std::os::{
    linux::net::SocketAddrExt,
    unix::net::{SocketAddr, UnixDatagram},
};

use crate::home;

/// Recovery is complete and requests are served.
pub(super) fn ready() {
    notify(home::variable(SOCKET_VARIABLE).as_deref(), "READY=1\nSTATUS=ready\n");
}

pub(super) fn stopping() {
    notify(home::variable(SOCKET_VARIABLE).as_deref(), "STOPPING=1\n");
}

/// Environment variable with the path of the service manager's socket.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

fn notify(socket: Option<&str>, text: &str) {
    let Some(socket) = socket else { return };
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(socket),
    };
    let result = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address));
    if let Err(error) = result {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_is_notified_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("abide-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        notify(path.to_str(), "READY=1\n");
        notify(Some(&format!("@{name}")), "READY=1\n");
        for socket in [by_path, by_name] {
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1\n");
        }
    }

    #[test]
    fn a_missing_socket_is_ignored() {
        notify(None, "READY=1\n");
        notify(Some("/nowhere/to/be/found"), "READY=1\n");
    }
}
