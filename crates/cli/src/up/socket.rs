//! The Unix socket of a home, `daemon.sock`, for commands of the home's owner.
//!
//! The mode of the home keeps other users out, and so does the check of each connection. A process started by an agent
//! or a terminal session is refused, because it could answer questions meant for a person. This is one of several
//! barriers. A process that leaves its keeper's tree with the help of another program (a service manager, cron), or
//! after killing its keeper, is not recognised; hiding the home from agents is the task of the isolation.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use abide_host::keeper_command::KEEPER_SUBCOMMAND;
use abide_os::peer::{AncestorProcess, PeerProcess, process_and_ancestors};

const FILE: &str = "daemon.sock";

/// Listens in this home. The caller holds the home's lock, so an existing socket belongs to a dead daemon.
pub(super) fn listen(home: &Path) -> io::Result<UnixListener> {
    remove(home)?;
    let listener = UnixListener::bind(SocketAddress::of(home)?.name)?;
    fs::set_permissions(home.join(FILE), fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

pub(crate) fn connect(home: &Path) -> io::Result<UnixStream> {
    let address = SocketAddress::of(home)?;
    UnixStream::connect(&address.name)
}

pub(super) fn remove(home: &Path) -> io::Result<()> {
    match fs::remove_file(home.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A socket address is limited to 108 bytes, so the socket is addressed through a file descriptor of the home.
struct SocketAddress {
    name: PathBuf,
    /// Keeps the descriptor open while the address is used.
    _home: File,
}

impl SocketAddress {
    fn of(home: &Path) -> io::Result<Self> {
        let directory = File::open(home)?;
        let name = PathBuf::from(format!("/proc/self/fd/{}/{FILE}", directory.as_raw_fd()));
        Ok(Self { name, _home: directory })
    }
}

/// Returns the reason if a connection is refused.
pub(super) fn refusal(socket: &dyn AsFd) -> Option<String> {
    let peer = match PeerProcess::of(socket) {
        Ok(peer) => peer,
        Err(error) => return Some(format!("cannot identify the client: {error}")),
    };
    let own = rustix::process::geteuid().as_raw();
    // Root is accepted, because it can do anything that this user can.
    if peer.uid != own && peer.uid != 0 {
        return Some("this socket is for the user who runs the daemon".to_owned());
    }
    match process_and_ancestors(peer.pid) {
        Ok(lineage) => refused_descendant(&lineage),
        Err(error) => Some(format!("cannot find out where process {} comes from: {error}", peer.pid)),
    }
}

/// Refuses descendants of a keeper. If runs get sockets of their own, this is the place to compare the keeper with that
/// of the run.
fn refused_descendant(lineage: &[AncestorProcess]) -> Option<String> {
    let keeper = lineage.iter().find(|ancestor| is_keeper(ancestor))?;
    Some(format!(
        "process {} was started by an agent or in a terminal session (below the keeper {}), which may not use the daemon's \
         socket; run the command in a shell of your own",
        lineage.first().map_or(0, |own| own.pid),
        keeper.pid,
    ))
}

/// A keeper is recognised by its hidden subcommand. A process that imitates one is refused.
fn is_keeper(ancestor: &AncestorProcess) -> bool {
    ancestor.arguments.get(1).is_some_and(|word| word == KEEPER_SUBCOMMAND.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, words: &[&str]) -> AncestorProcess {
        let arguments = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        AncestorProcess { pid, start_time: 1, arguments }
    }

    #[test]
    fn descendants_of_a_keeper_are_refused_and_other_shells_are_not() {
        let person = [process(9, &["abide", "ls"]), process(8, &["-bash"]), process(1, &["init"])];
        assert_eq!(refused_descendant(&person), None);
        let agent = [
            process(9, &["abide", "reply", "last", "yes"]),
            process(8, &["sh", "-c", "abide reply last yes"]),
            process(7, &["/usr/bin/abide", KEEPER_SUBCOMMAND]),
            process(6, &["abide", "up"]),
        ];
        let refusal = refused_descendant(&agent).unwrap();
        assert!(refusal.contains("process 9") && refusal.contains("keeper 7"), "{refusal}");
        assert_eq!(
            refused_descendant(&[process(5, &["grep", "x", KEEPER_SUBCOMMAND])]),
            None,
            "only as its subcommand"
        );
    }

    #[test]
    fn a_home_with_a_long_name_has_a_socket_too() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("x".repeat(200));
        fs::create_dir(&home).unwrap();
        let _listener = listen(&home).unwrap();
        let stream = connect(&home).unwrap();
        assert_eq!(fs::metadata(home.join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        drop(stream);
        let _again = listen(&home).expect("a dead daemon's socket is replaced");
        remove(&home).unwrap();
        assert_eq!(connect(&home).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
