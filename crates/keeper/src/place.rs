//! Where a keeper lies on disk: a directory with its socket, its secret, its spool and its exit record.
//!
//! Socket addresses end at 108 bytes whatever the home is, so both sides name the socket through a file descriptor of
//! its directory. Nothing here starts or ends a process.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_os::beneath::Directory;
use abide_os::remove::remove_path;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::error::KeeperError;
use crate::identity::ProcessIdentity;
use crate::protocol::ChildExit;

/// One keeper's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperDir {
    path: PathBuf,
}

impl KeeperDir {
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

    /// Removes everything. A place that is not there is removed already.
    pub fn remove(&self) -> io::Result<()> {
        Ok(remove_path(&self.path, MAX_REMOVAL_TIME)?.into_result()?)
    }

    /// Reads one of the place's small files. The child may have put anything in its stead: a link is not followed, and a
    /// FIFO not waited for.
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(Directory::open(&self.path)?.read_bounded(name, MAX_FILE_BYTES)?)
    }

    /// The secret that both sides of a connection know.
    pub(crate) fn secret(&self) -> io::Result<Vec<u8>> {
        self.read(SECRET)
    }

    pub(crate) fn listen(&self) -> io::Result<OwnedFd> {
        let (address, _directory) = self.address()?;
        let socket = stream()?;
        bind(&socket, &address)?;
        fs::set_permissions(self.path.join(SOCKET), fs::Permissions::from_mode(0o600))?;
        listen(&socket, 64)?;
        Ok(socket)
    }

    /// Connects without waiting: a keeper that accepts no connections any more (stopped, and its queue of connections
    /// full) is an error of kind `WouldBlock`.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        connect_below(&File::open(&self.path)?)
    }

    fn address(&self) -> io::Result<(SocketAddrUnix, File)> {
        let directory = File::open(&self.path)?;
        Ok((address_below(&directory)?, directory))
    }

    /// Writes how the child ended, and how many bytes each stream of job 0 had by then.
    ///
    /// A crash of the keeper leaves the whole record or none. A power failure before [`Self::sync_exit_record`] may leave a
    /// record that is cut off, which counts as none.
    pub(crate) fn record_exit(&self, exit: &ChildExit, printed: [u64; 2]) -> io::Result<()> {
        let [stdout, stderr] = printed;
        let line = format!("{{\"code\":{},\"at\":{},\"printed\":[{stdout},{stderr}]}}\n", exit.code, exit.at);
        let temporary = self.path.join("exit.tmp");
        let mut file = private(&temporary)?;
        file.write_all(line.as_bytes())?;
        fs::rename(&temporary, self.path.join(EXIT))
    }

    /// Makes the exit record durable: its contents and its name, in one commit of the file system.
    pub(crate) fn sync_exit_record(&self) -> io::Result<()> {
        File::open(self.path.join(EXIT))?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    /// How the child ended, if its keeper lived to record it.
    pub fn exit_record(&self) -> Option<ChildExit> {
        Some(self.final_record()?.exit)
    }

    /// The whole exit record, if the keeper lived to write it.
    pub fn final_record(&self) -> Option<FinalRecord> {
        parse_exit(std::str::from_utf8(&self.read(EXIT).ok()?).ok()?)
    }

    /// Takes the place for good: for a keeper that is about to hold something in it, or for nobody, so that no keeper ever
    /// will. The first one counts; false if somebody else was first.
    pub(crate) fn claim(&self, keeper: Option<&ProcessIdentity>) -> io::Result<bool> {
        let bytes = postcard::to_stdvec(&keeper).map_err(io::Error::other)?;
        let own = self.path.join(format!("{CLAIM}.{}", std::process::id()));
        private(&own)?.write_all(&bytes)?;
        // A link is there with its contents or not at all.
        let linked = fs::hard_link(&own, self.path.join(CLAIM));
        let _swept_with_the_rest = fs::remove_file(&own);
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How the place was taken, if it was.
    pub(crate) fn claimed(&self) -> Option<DirClaim> {
        let bytes = self.read(CLAIM).ok()?;
        Some(match postcard::from_bytes(&bytes) {
            Ok(Some(keeper)) => DirClaim::Keeper(keeper),
            Ok(None) => DirClaim::Nobody,
            Err(_) => DirClaim::Unreadable,
        })
    }

    /// Has the disk take the directory with the names of its files, so that after a power failure it is known that a
    /// keeper had begun here.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Writes the pids for people and for the sweep after a keeper's own death.
    pub(crate) fn record_identity(&self, bytes: &[u8]) -> io::Result<()> {
        private(&self.path.join(IDENTITY))?.write_all(bytes)
    }

    pub(crate) fn identity(&self) -> io::Result<Vec<u8>> {
        self.read(IDENTITY)
    }
}

/// Connects to the socket in an open directory, without waiting.
pub(crate) fn connect_below(directory: &impl AsFd) -> io::Result<OwnedFd> {
    let socket = stream()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    connect(&socket, &address_below(directory)?)?;
    Ok(socket)
}

fn address_below(directory: &impl AsFd) -> io::Result<SocketAddrUnix> {
    let descriptor = directory.as_fd().as_raw_fd();
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{descriptor}/{SOCKET}"))?)
}

/// Opens a file for writing that only its owner can read, whatever the umask is.
fn private(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// How a place was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DirClaim {
    /// By this keeper.
    Keeper(ProcessIdentity),
    /// So that no keeper ever begins in it.
    Nobody,
    /// By a keeper whose identity a power failure took: a claim is linked whole, so in the same boot it can be read.
    Unreadable,
}

/// How a child ended and how much it had printed by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalRecord {
    /// How it ended.
    pub exit: ChildExit,
    /// The bytes of stdout and stderr of job 0. Keepers of earlier versions did not record them.
    pub printed: Option<[u64; 2]>,
}

/// How long a removal may take. What is left then is removed by the next one.
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// Secret, identity, claim and exit record are smaller than this.
const MAX_FILE_BYTES: u64 = 64 << 10;

const SOCKET: &str = "socket";
const SECRET: &str = "secret";
const EXIT: &str = "exit.json";
const IDENTITY: &str = "identity";
const CLAIM: &str = "claim";

fn stream() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn parse_exit(line: &str) -> Option<FinalRecord> {
    let rest = line.trim().strip_prefix("{\"code\":")?.strip_suffix('}')?;
    let (code, rest) = rest.split_once(",\"at\":")?;
    let (at, printed) = match rest.split_once(",\"printed\":[") {
        Some((at, printed)) => {
            let (stdout, stderr) = printed.strip_suffix(']')?.split_once(',')?;
            (at, Some([stdout.parse().ok()?, stderr.parse().ok()?]))
        }
        None => (rest, None),
    };
    Some(FinalRecord { exit: ChildExit { code: code.parse().ok()?, at: at.parse().ok()? }, printed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_fits_however_long_the_home_is() {
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(&home.path().join("x".repeat(200)), "s-000000");
        place.create().unwrap();
        let _listening = place.listen().unwrap();
        place.connect().unwrap();
    }

    #[test]
    fn a_place_is_taken_once() {
        let home = tempfile::tempdir().unwrap();
        let own = ProcessIdentity::own();
        let place = KeeperDir::new(home.path(), "s-000000");
        assert!(place.claim(None).is_err(), "what is not there cannot be taken");
        place.create().unwrap();
        assert_eq!(place.claimed(), None);
        assert!(place.claim(Some(&own)).unwrap());
        assert!(!place.claim(None).unwrap());
        assert_eq!(place.claimed(), Some(DirClaim::Keeper(own)));
    }

    /// SECURITY finding 4: the child can write in its place, and a recursive removal of this tree fails or overflows the
    /// stack.
    #[test]
    fn a_place_with_deeply_nested_directories_is_removed() {
        use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "s-000000");
        place.create().unwrap();
        let mut directory = openat(CWD, place.path(), OFlags::PATH, Mode::empty()).unwrap();
        for _ in 0..15_000 {
            mkdirat(&directory, "d", Mode::RWXU).unwrap();
            directory = openat(&directory, "d", OFlags::PATH, Mode::empty()).unwrap();
        }
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let removed = small.spawn(move || place.remove()).unwrap().join().unwrap();
        removed.unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }

    /// SECURITY finding 1 d: a FIFO or a link to an endless device in the place of a keeper's file.
    #[test]
    fn a_fifo_or_a_link_in_the_place_of_a_file_is_neither_waited_for_nor_followed() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "s-000000");
        place.create().unwrap();
        fs::remove_file(place.path().join(SECRET)).unwrap();
        for name in [SECRET, IDENTITY, CLAIM, EXIT] {
            std::os::unix::fs::symlink("/dev/zero", place.path().join(name)).unwrap();
        }
        let unreadable = || {
            place.secret().is_err()
                && place.identity().is_err()
                && place.claimed().is_none()
                && place.final_record().is_none()
        };
        assert!(unreadable());
        for name in [SECRET, IDENTITY, CLAIM, EXIT] {
            fs::remove_file(place.path().join(name)).unwrap();
            mknodat(CWD, place.path().join(name), FileType::Fifo, Mode::RUSR, 0).unwrap();
        }
        assert!(unreadable());
    }

    #[test]
    fn an_exit_record_is_read_back_whole_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "s-000000");
        place.create().unwrap();
        assert_eq!(place.exit_record(), None);
        let exit = ChildExit { code: 137, at: 42 };
        place.record_exit(&exit, [7, 8]).unwrap();
        let record = FinalRecord { exit, printed: Some([7, 8]) };
        assert_eq!(place.final_record(), Some(record.clone()));
        let path = home.path().join("s-000000").join(EXIT);
        let whole = fs::read_to_string(&path).unwrap();
        for torn in (0..whole.trim_end().len()).filter_map(|end| whole.get(..end)) {
            fs::write(&path, torn).unwrap();
            assert_eq!(place.final_record(), None, "{torn:?}");
        }
        // As keepers of earlier versions wrote it.
        fs::write(&path, "{\"code\":137,\"at\":42}\n").unwrap();
        assert_eq!(place.final_record(), Some(FinalRecord { printed: None, ..record }));
    }
}
