//! Where a keeper lies on disk: a directory with its socket, its secret, its spool and its exit record.
//!
//! Socket addresses end at 108 bytes whatever the home is, so both sides name the socket through a file descriptor of
//! its directory. Nothing here starts or ends a process.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::error::KeeperError;
use crate::identity::ProcessIdentity;
use crate::protocol::Exit;

/// One keeper's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    path: PathBuf,
}

impl Place {
    /// The place of the keeper with this id under `keepers`.
    pub fn new(keepers: &Path, id: &str) -> Self {
        Self { path: keepers.join(id) }
    }

    /// The place whose directory is this.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// All places under `keepers`; none if there is no such directory yet.
    pub fn all(keepers: &Path) -> Vec<(String, Self)> {
        let Ok(entries) = fs::read_dir(keepers) else { return Vec::new() };
        let mut places: Vec<_> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, Self::at(entry.path()))))
            .collect();
        places.sort_by(|a, b| a.0.cmp(&b.0));
        places
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory and its secret. Fails if it is there already, so two keepers never share one.
    pub(crate) fn create(&self) -> Result<(), KeeperError> {
        let failed = |error| KeeperError::system(format!("cannot make {}", self.path.display()), error);
        if let Some(parent) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        }
        fs::DirBuilder::new().mode(0o700).create(&self.path).map_err(failed)?;
        let mut secret = [0u8; 32];
        io::Read::read_exact(&mut File::open("/dev/urandom").map_err(failed)?, &mut secret)
            .map_err(failed)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(self.path.join(SECRET));
        file.as_mut().map_err(|error| failed(io::Error::new(error.kind(), error.to_string())))?;
        file.and_then(|mut file| file.write_all(&secret)).map_err(failed)
    }

    /// Removes everything.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }

    /// The secret that both sides of a connection know.
    pub(crate) fn secret(&self) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(SECRET))
    }

    pub(crate) fn listen(&self) -> io::Result<OwnedFd> {
        let (address, _directory) = self.address()?;
        let socket = stream()?;
        bind(&socket, &address)?;
        listen(&socket, 64)?;
        Ok(socket)
    }

    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        let (address, _directory) = self.address()?;
        let socket = stream()?;
        connect(&socket, &address)?;
        Ok(socket)
    }

    fn address(&self) -> io::Result<(SocketAddrUnix, File)> {
        let directory = File::open(&self.path)?;
        let name = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
        Ok((SocketAddrUnix::new(name)?, directory))
    }

    /// Writes how the child ended so that a crash leaves the whole record or none.
    pub(crate) fn record_exit(&self, exit: &Exit) -> io::Result<()> {
        let line = format!("{{\"code\":{},\"at\":{}}}\n", exit.code, exit.at);
        let temporary = self.path.join("exit.tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(line.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, self.path.join(EXIT))?;
        File::open(&self.path)?.sync_all()
    }

    /// How the child ended, if its keeper lived to record it.
    pub fn exit_record(&self) -> Option<Exit> {
        parse_exit(&fs::read_to_string(self.path.join(EXIT)).ok()?)
    }

    /// Takes the place for good: for a keeper that is about to hold something in it, or for nobody, so that no keeper ever
    /// will. The first one counts; false if somebody else was first.
    pub(crate) fn claim(&self, keeper: Option<&ProcessIdentity>) -> io::Result<bool> {
        let bytes = postcard::to_stdvec(&keeper).map_err(io::Error::other)?;
        let own = self.path.join(format!("{CLAIM}.{}", std::process::id()));
        fs::write(&own, bytes)?;
        // A link is there with its contents or not at all.
        let linked = fs::hard_link(&own, self.path.join(CLAIM));
        let _swept_with_the_rest = fs::remove_file(&own);
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Who took the place, if anybody did: a keeper, or nobody for ever.
    pub(crate) fn claimed(&self) -> Option<Option<ProcessIdentity>> {
        postcard::from_bytes(&fs::read(self.path.join(CLAIM)).ok()?).ok()
    }

    /// Writes the pids for people and for the sweep after a keeper's own death.
    pub(crate) fn record_identity(&self, bytes: &[u8]) -> io::Result<()> {
        fs::write(self.path.join(IDENTITY), bytes)
    }

    pub(crate) fn identity(&self) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(IDENTITY))
    }
}

const SOCKET: &str = "socket";
const SECRET: &str = "secret";
const EXIT: &str = "exit.json";
const IDENTITY: &str = "identity";
const CLAIM: &str = "claim";

fn stream() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn parse_exit(line: &str) -> Option<Exit> {
    let rest = line.trim().strip_prefix("{\"code\":")?.strip_suffix('}')?;
    let (code, at) = rest.split_once(",\"at\":")?;
    Some(Exit { code: code.parse().ok()?, at: at.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_fits_however_long_the_home_is() {
        let home = tempfile::tempdir().unwrap();
        let place = Place::new(&home.path().join("x".repeat(200)), "s-000000");
        place.create().unwrap();
        let _listening = place.listen().unwrap();
        place.connect().unwrap();
    }

    #[test]
    fn a_place_is_taken_once() {
        let home = tempfile::tempdir().unwrap();
        let own = ProcessIdentity::own();
        let place = Place::new(home.path(), "s-000000");
        assert!(place.claim(None).is_err(), "what is not there cannot be taken");
        place.create().unwrap();
        assert_eq!(place.claimed(), None);
        assert!(place.claim(Some(&own)).unwrap());
        assert!(!place.claim(None).unwrap());
        assert_eq!(place.claimed(), Some(Some(own)));
    }

    #[test]
    fn an_exit_record_is_read_back_whole_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let place = Place::new(home.path(), "s-000000");
        place.create().unwrap();
        assert_eq!(place.exit_record(), None);
        let exit = Exit { code: 137, at: 42 };
        place.record_exit(&exit).unwrap();
        assert_eq!(place.exit_record(), Some(exit));
        fs::write(home.path().join("s-000000").join(EXIT), "{\"code\":13").unwrap();
        assert_eq!(place.exit_record(), None);
    }
}
