//! A Postgres server for one command: created in an empty folder, reachable on loopback with a random password, durable
//! (fsync stays on), and deleted when the value is dropped.
//!
//! If this process is killed, the kernel signals the server (`setpriv --pdeathsig`), and the next command that needs a
//! server deletes the folder. Existing servers of the machine are not used.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr};
use std::{env, thread};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use tempfile::TempDir;

use crate::shell::{EchoedCommand, UnixUser, which};
use crate::workspace::CargoWorkspace;

/// The variable that contains the URL of the server, for tests and benchmarks.
pub(crate) const URL_VARIABLE: &str = "ABIDE_TEST_POSTGRES_URL";

/// The variable with the folder of the CA certificates: `ca.pem` has signed the server's certificate, which is valid
/// for `db.abide.test`; `other.pem` has not.
pub(crate) const CERTIFICATES_VARIABLE: &str = "ABIDE_TEST_POSTGRES_CERTIFICATES";

/// A running server. It accepts TLS and plain-text connections.
pub(crate) struct PostgresServer {
    server: Child,
    url: String,
    // Dropped after the server has been stopped.
    home: TempDir,
}

impl PostgresServer {
    pub(crate) fn start(workspace: &CargoWorkspace) -> Result<Self> {
        let binaries = binaries().context("no Postgres server found; install the package postgresql")?;
        let user = unprivileged()?;
        let home = make_home(&workspace.target.join("postgres"), user)?;
        let password = random_hex()?;
        init(&binaries, home.path(), user, &password)?;
        make_certificates(home.path(), user)?;
        // Another process may take the free port before the server binds it, so a failure is retried.
        let mut last = None;
        for _ in 0..3 {
            let port = free_port()?;
            match serve(&binaries, home.path(), user, port) {
                Ok(server) => {
                    let url = format!("postgres://abide:{password}@127.0.0.1:{port}/postgres");
                    return Ok(Self { server, url, home });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("a server was tried")?)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn certificates(&self) -> &Path {
        self.home.path()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        stop(&mut self.server);
    }
}

/// Returns the folder that contains `postgres` and `initdb`; the newest if there are several.
pub(crate) fn binaries() -> Option<PathBuf> {
    let on_path = which("postgres").and_then(|path| path.parent().map(Path::to_path_buf));
    let complete = |dir: &PathBuf| dir.join("postgres").is_file() && dir.join("initdb").is_file();
    // Debian does not put servers on the path; each major version has its own folder.
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort();
    on_path.into_iter().chain(versions.into_iter().rev().map(|(_, dir)| dir)).find(complete)
}

/// Postgres refuses to run as root. In that case the first existing account of this list is used.
fn unprivileged() -> Result<Option<UnixUser>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let passwd = fs::read_to_string("/etc/passwd").context("could not read the list of accounts")?;
    let server_account = ["postgres", "nobody"].into_iter().find_map(|name| account(&passwd, name));
    match server_account {
        Some(user) => Ok(Some(user)),
        None => bail!("Postgres does not run as root, and there is no account `postgres` or `nobody`"),
    }
}

fn account(passwd: &str, name: &str) -> Option<UnixUser> {
    let mut fields = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| if fields.next() == Some(name) { Some(fields) } else { None })?;
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(UnixUser { uid, gid })
}

/// Creates an empty folder that belongs to the server's account: under the target folder, or under the system's
/// temporary folder if the account cannot reach the former (a checkout in a private home).
fn make_home(preferred: &Path, user: Option<UnixUser>) -> Result<TempDir> {
    fs::create_dir_all(preferred).with_context(|| format!("could not create {}", preferred.display()))?;
    for parent in [preferred.to_path_buf(), env::temp_dir()] {
        sweep(&parent);
        let home = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir_in(&parent)
            .with_context(|| format!("could not create a folder in {}", parent.display()))?;
        if let Some(UnixUser { uid, gid }) = user {
            chown(home.path(), Some(uid), Some(gid))
                .context("could not hand the folder to the server's account")?;
        }
        if EchoedCommand::new("test").arg("-w").arg(home.path()).user(user).dir(Path::new("/")).read().is_ok()
        {
            return Ok(home);
        }
    }
    bail!(
        "the server's account can write neither in {} nor in {}",
        preferred.display(),
        env::temp_dir().display()
    )
}

/// Removes the folders of commands that were killed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let owner = entry.file_name().to_str().and_then(owner);
        if owner.is_some_and(|owner| test_kill_process(owner) == Err(Errno::SRCH)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the process that created a folder of this name.
fn owner(folder: &str) -> Option<Pid> {
    let (pid, _) = folder.strip_prefix(PREFIX)?.split_once('-')?;
    Pid::from_raw(pid.parse().ok()?)
}

fn init(binaries: &Path, home: &Path, user: Option<UnixUser>, password: &str) -> Result<()> {
    let password_file = home.join("password");
    fs::write(&password_file, password).context("could not write the password")?;
    if let Some(UnixUser { uid, gid }) = user {
        chown(&password_file, Some(uid), Some(gid)).context("could not hand over the password")?;
    }
    EchoedCommand::new(binaries.join("initdb"))
        .args(["--username=abide", "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--pwfile"])
        .arg(&password_file)
        .arg("--pgdata")
        .arg(home.join("data"))
        .user(user)
        .dir(home)
        .read()
        .context("could not make a database cluster")?;
    Ok(())
}

/// Creates two certificate authorities, and a server certificate signed by the first.
fn make_certificates(home: &Path, user: Option<UnixUser>) -> Result<()> {
    let settings = "[req]\ndistinguished_name = name\n[name]\n\
                    [authority]\nbasicConstraints = critical, CA:TRUE\n\
                    [server]\nbasicConstraints = critical, CA:FALSE\nsubjectAltName = DNS:db.abide.test\n";
    fs::write(home.join("openssl.cnf"), settings).context("could not write the settings of openssl")?;
    let make = |name: &str, extensions: &str, signer: &[&str]| {
        EchoedCommand::new("openssl")
            .args([
                "req",
                "-x509",
                "-config",
                "openssl.cnf",
                "-extensions",
                extensions,
                "-days",
                "2",
                "-nodes",
            ])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj"])
            .arg(format!("/CN=abide test {name}"))
            .args(["-keyout".to_owned(), format!("{name}.key"), "-out".to_owned(), format!("{name}.pem")])
            .args(signer)
            .dir(home)
            .read()
            .with_context(|| format!("could not make the certificate {name}"))
    };
    make("ca", "authority", &[])?;
    make("other", "authority", &[])?;
    make("server", "server", &["-CA", "ca.pem", "-CAkey", "ca.key"])?;
    if let Some(UnixUser { uid, gid }) = user {
        for file in ["server.key", "server.pem"] {
            chown(home.join(file), Some(uid), Some(gid)).context("could not hand over the certificate")?;
        }
    }
    Ok(())
}

/// Starts the server and returns when it accepts connections.
fn serve(binaries: &Path, home: &Path, user: Option<UnixUser>, port: u16) -> Result<Child> {
    let postgres = binaries.join("postgres");
    let shell = match which("setpriv") {
        Some(setpriv) => EchoedCommand::new(setpriv).args(["--pdeathsig", "INT"]).arg(postgres),
        None => EchoedCommand::new(postgres),
    };
    let mut server = shell
        .arg("-D")
        .arg(home.join("data"))
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
        .args(["-c", "ssl=on", "-c"])
        .arg(format!("ssl_cert_file={}", home.join("server.pem").display()))
        .arg("-c")
        .arg(format!("ssl_key_file={}", home.join("server.key").display()))
        .args(["-c", "fsync=on", "-c", "max_connections=200", "-c", "lc_messages=C", "-p"])
        .arg(port.to_string())
        .user(user)
        .dir(home)
        .start()?;
    let log = home.join("log");
    let ready =
        server.stderr.take().context("its errors are on a pipe").and_then(|stderr| await_ready(stderr, &log));
    match ready {
        Ok(()) => Ok(server),
        Err(error) => {
            stop(&mut server);
            Err(error)
        }
    }
}

/// Reads the server's log until it is ready, then starts a thread that writes the rest to `log`.
fn await_ready(stderr: ChildStderr, log: &Path) -> Result<()> {
    let mut log = File::create(log).context("could not create the server's log")?;
    let mut lines = BufReader::new(stderr);
    let mut log_text = String::new();
    loop {
        let start = log_text.len();
        if lines.read_line(&mut log_text).context("could not read the server's log")? == 0 {
            bail!("the server did not start:\n{log_text}");
        }
        if log_text[start..].contains("database system is ready to accept connections") {
            break;
        }
    }
    log.write_all(log_text.as_bytes()).context("could not write the server's log")?;
    thread::spawn(move || std::io::copy(&mut lines, &mut log));
    Ok(())
}

/// Stops the server immediately. Its data are deleted, so no checkpoint is needed.
fn stop(server: &mut Child) {
    let pid = Pid::from_child(server);
    if kill_process(pid, Signal::QUIT).is_ok() {
        let _ = server.wait();
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?;
    Ok(listener.local_addr()?.port())
}

/// Other users of this machine can reach the port, so the password must be random.
fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("no randomness")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

const PREFIX: &str = "server-of-";

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::{UnixUser, account, owner};

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let passwd = "postgresql:x:1:2::/:/bin/sh\npostgres:x:102:105:PostgreSQL:/var/lib:/bin/sh\n";
        let UnixUser { uid, gid } = account(passwd, "postgres").unwrap();
        assert_eq!((uid, gid), (102, 105));
        assert!(account(passwd, "nobody").is_none());
    }

    #[test]
    fn a_folder_tells_which_chore_made_it() {
        assert_eq!(owner("server-of-4711-Xy3"), Pid::from_raw(4711));
        assert_eq!(owner("another-cluster"), None);
    }
}
