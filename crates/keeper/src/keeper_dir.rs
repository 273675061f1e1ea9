//! The directory of a keeper: its socket, secret, spool and exit record.
//!
//! A Unix socket address has at most 108 bytes, and the home may be longer. So both sides address the socket through a
//! file descriptor of its directory. This module starts and ends no processes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use abide_os::remove::remove_path;
use abide_os::{
    atomic_file::{self, Durability},
    beneath::Directory,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::error::KeeperError;
use crate::identity::ProcessIdentity;
use crate::protocol::ChildExit;

/// The directory of one keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperDir {
    path: PathBuf,
}

impl KeeperDir {
    /// The directory of the keeper with this id under `keepers`.
    pub fn new(keepers: &Path, id: &str) -> Self {
        Self { path: keepers.join(id) }
    }

    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// All keeper directories under `keepers`; empty if that does not exist.
    pub fn list(keepers: &Path) -> Vec<(String, Self)> {
        let Ok(entries) = fs::read_dir(keepers) else { return Vec::new() };
        let mut dirs: Vec<_> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, Self::at(entry.path()))))
            .collect();
        dirs.sort_by(|a, b| a.0.cmp(&b.0));
        dirs
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory and its secret. Fails if it exists, so two keepers never share one.
    pub(crate) fn create(&self) -> Result<(), KeeperError> {
        let failed = |error| KeeperError::system(format!("cannot make {}", self.path.display()), error);
        if let Some(parent) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        }
        fs::DirBuilder::new().mode(0o700).create(&self.path).map_err(failed)?;
        let mut secret = [0u8; 32];
        io::Read::read_exact(&mut File::open("/dev/urandom").map_err(failed)?, &mut secret)
            .map_err(failed)?;
        let mut file =
            File::options().write(true).create_new(true).mode(0o600).open(self.path.join(SECRET_FILE));
        file.as_mut().map_err(|error| failed(io::Error::new(error.kind(), error.to_string())))?;
        file.and_then(|mut file| file.write_all(&secret)).map_err(failed)
    }

    /// Removes the directory. Succeeds if it does not exist.
    pub fn remove(&self) -> io::Result<()> {
        Ok(remove_path(&self.path, MAX_REMOVAL_TIME)?.into_result()?)
    }

    /// Reads a small file of the directory. The child may have replaced it, so links are not followed and FIFOs are not
    /// waited for.
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(Directory::open(&self.path)?.read_bounded(name, MAX_FILE_BYTES)?)
    }

    /// The secret that authenticates clients.
    pub(crate) fn secret(&self) -> io::Result<Vec<u8>> {
        self.read(SECRET_FILE)
    }

    pub(crate) fn listen(&self) -> io::Result<OwnedFd> {
        let (address, _directory) = self.address()?;
        let socket = unix_stream_socket()?;
        bind(&socket, &address)?;
        fs::set_permissions(self.path.join(SOCKET_FILE), fs::Permissions::from_mode(0o600))?;
        listen(&socket, 64)?;
        Ok(socket)
    }

    /// Connects without blocking. Fails with `WouldBlock` if the keeper is stopped and its backlog is full.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        connect_below(&File::open(&self.path)?)
    }

    fn address(&self) -> io::Result<(SocketAddrUnix, File)> {
        let directory = File::open(&self.path)?;
        Ok((address_below(&directory)?, directory))
    }

    /// Writes the exit record of the child.
    ///
    /// A crash of the keeper leaves the whole record or none. A power failure before [`Self::sync_exit_record`] may
    /// leave a truncated record, which counts as none.
    pub(crate) fn write_exit_record(&self, record: &FinalRecord) -> io::Result<()> {
        let line = record.to_line();
        atomic_file::replace(&self.path.join(EXIT_RECORD_FILE), line.as_bytes(), Durability::ProcessCrash)
    }

    /// Makes the contents and the name of the exit record durable.
    pub(crate) fn sync_exit_record(&self) -> io::Result<()> {
        File::open(self.path.join(EXIT_RECORD_FILE))?.sync_all()?;
        File::open(&self.path)?.sync_all()
    }

    /// The exit of the child; None if the keeper died before it wrote the record.
    pub fn exit_record(&self) -> Option<ChildExit> {
        Some(self.read_exit_record()?.exit)
    }

    /// The whole exit record; None if the keeper died before it wrote it.
    pub fn read_exit_record(&self) -> Option<FinalRecord> {
        parse_exit_record(std::str::from_utf8(&self.read(EXIT_RECORD_FILE).ok()?).ok()?)
    }

    /// Claims the directory permanently: for a keeper, or with None for no keeper, which blocks it. Only the first
    /// claim succeeds; later ones return false.
    pub(crate) fn claim(&self, keeper: Option<&ProcessIdentity>) -> io::Result<bool> {
        let bytes = postcard::to_stdvec(&keeper).map_err(io::Error::other)?;
        let temporary = self.path.join(format!("{CLAIM_FILE}.{}", std::process::id()));
        create_private_file(&temporary)?.write_all(&bytes)?;
        // A hard link appears atomically with its contents. A temporary file that remains is removed with the
        // directory.
        let linked = fs::hard_link(&temporary, self.path.join(CLAIM_FILE));
        fs::remove_file(&temporary).ok();
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The claim of the directory; None if there is none.
    pub(crate) fn read_claim(&self) -> Option<DirClaim> {
        let bytes = self.read(CLAIM_FILE).ok()?;
        Some(match postcard::from_bytes(&bytes) {
            Ok(Some(keeper)) => DirClaim::Keeper(keeper),
            Ok(None) => DirClaim::Forbidden,
            Err(_) => DirClaim::Unreadable,
        })
    }

    /// Syncs the directory with the names of its files, so that the claim survives a power failure.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Writes the identity record, for operators and for the sweep after the keeper's death.
    pub(crate) fn write_identity(&self, bytes: &[u8]) -> io::Result<()> {
        create_private_file(&self.path.join(IDENTITY_FILE))?.write_all(bytes)
    }

    pub(crate) fn identity(&self) -> io::Result<Vec<u8>> {
        self.read(IDENTITY_FILE)
    }
}

/// Connects to the socket in an open directory, without blocking.
pub(crate) fn connect_below(directory: &impl AsFd) -> io::Result<OwnedFd> {
    let socket = unix_stream_socket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    connect(&socket, &address_below(directory)?)?;
    Ok(socket)
}

fn address_below(directory: &impl AsFd) -> io::Result<SocketAddrUnix> {
    let descriptor = directory.as_fd().as_raw_fd();
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{descriptor}/{SOCKET_FILE}"))?)
}

/// Creates a file with mode 0600, independent of the umask.
fn create_private_file(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The claim of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DirClaim {
    Keeper(ProcessIdentity),
    /// No keeper may start in the directory.
    Forbidden,
    /// Claimed by a keeper whose identity was lost in a power failure. Without one, a claim is always complete.
    Unreadable,
}

/// The exit of a child and the length of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalRecord {
    pub exit: ChildExit,
    /// Length of stdout and stderr of job 0, in bytes. Missing in records of earlier versions.
    pub printed: Option<[u64; 2]>,
    /// The latest keys of accepted writes. Empty in records of earlier versions.
    pub written_keys: Vec<u64>,
}

impl FinalRecord {
    fn to_line(&self) -> String {
        let Self { exit, printed, written_keys } = self;
        let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let printed = list(&printed.unwrap_or_default());
        let written = list(written_keys);
        format!(
            "{{\"code\":{},\"at\":{},\"printed\":[{printed}],\"written\":[{written}]}}\n",
            exit.code, exit.at
        )
    }
}

/// Time limit for a removal. The next removal continues.
const MAX_REMOVAL_TIME: Duration = Duration::from_secs(60);
/// Maximum size of secret, identity, claim and exit record.
const MAX_FILE_BYTES: u64 = 64 << 10;

const SOCKET_FILE: &str = "socket";
const SECRET_FILE: &str = "secret";
const EXIT_RECORD_FILE: &str = "exit.json";
const IDENTITY_FILE: &str = "identity";
const CLAIM_FILE: &str = "claim";

fn unix_stream_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn parse_exit_record(line: &str) -> Option<FinalRecord> {
    let rest = line.trim().strip_prefix("{\"code\":")?.strip_suffix('}')?;
    let (code, rest) = rest.split_once(",\"at\":")?;
    let (rest, written_keys) = match rest.split_once(",\"written\":[") {
        Some((rest, keys)) => {
            let keys = keys.strip_suffix(']')?.split_terminator(',').map(|key| key.parse().ok());
            (rest, keys.collect::<Option<Vec<u64>>>()?)
        }
        None => (rest, Vec::new()),
    };
    let (at, printed) = match rest.split_once(",\"printed\":[") {
        Some((at, printed)) => {
            let (stdout, stderr) = printed.strip_suffix(']')?.split_once(',')?;
            (at, Some([stdout.parse().ok()?, stderr.parse().ok()?]))
        }
        None => (rest, None),
    };
    let exit = ChildExit { code: code.parse().ok()?, at: at.parse().ok()? };
    Some(FinalRecord { exit, printed, written_keys })
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
    fn a_directory_is_claimed_once() {
        let home = tempfile::tempdir().unwrap();
        let own = ProcessIdentity::own();
        let place = KeeperDir::new(home.path(), "s-000000");
        assert!(place.claim(None).is_err(), "a missing directory cannot be claimed");
        place.create().unwrap();
        assert_eq!(place.read_claim(), None);
        assert!(place.claim(Some(&own)).unwrap());
        assert!(!place.claim(None).unwrap());
        assert_eq!(place.read_claim(), Some(DirClaim::Keeper(own)));
    }

    /// SECURITY finding 4: the child can write to the directory. A recursive removal of this tree would fail or
    /// overflow the stack.
    #[test]
    fn a_keeper_directory_with_deep_nesting_is_removed() {
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

    /// SECURITY finding 1 d: a FIFO, or a link to an endless device, in place of a keeper's file.
    #[test]
    fn a_fifo_or_link_instead_of_a_file_is_neither_waited_for_nor_followed() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let home = tempfile::tempdir().unwrap();
        let place = KeeperDir::new(home.path(), "s-000000");
        place.create().unwrap();
        fs::remove_file(place.path().join(SECRET_FILE)).unwrap();
        for name in [SECRET_FILE, IDENTITY_FILE, CLAIM_FILE, EXIT_RECORD_FILE] {
            std::os::unix::fs::symlink("/dev/zero", place.path().join(name)).unwrap();
        }
        let unreadable = || {
            place.secret().is_err()
                && place.identity().is_err()
                && place.read_claim().is_none()
                && place.read_exit_record().is_none()
        };
        assert!(unreadable());
        for name in [SECRET_FILE, IDENTITY_FILE, CLAIM_FILE, EXIT_RECORD_FILE] {
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
        let record = FinalRecord { exit, printed: Some([7, 8]), written_keys: vec![1 << 63, 9] };
        place.write_exit_record(&record).unwrap();
        assert_eq!(place.read_exit_record(), Some(record.clone()));
        let path = home.path().join("s-000000").join(EXIT_RECORD_FILE);
        let whole = fs::read_to_string(&path).unwrap();
        for torn in (0..whole.trim_end().len()).filter_map(|end| whole.get(..end)) {
            fs::write(&path, torn).unwrap();
            assert_eq!(place.read_exit_record(), None, "{torn:?}");
        }
        // The format of earlier versions.
        fs::write(&path, "{\"code\":137,\"at\":42}\n").unwrap();
        assert_eq!(
            place.read_exit_record(),
            Some(FinalRecord { printed: None, written_keys: vec![], ..record })
        );
    }
}
