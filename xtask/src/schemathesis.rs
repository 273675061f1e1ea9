//! Tests the HTTP interface against its OpenAPI document with schemathesis. It sends requests that the document allows
//! and requests that it forbids, and each response must be a documented one.
//!
//! The daemon runs in a temporary home and is stopped afterwards. The routes that stop the daemon and rotate its token are excluded. So is
//! one check: the accepted data depend on the machine (installed engines, directories), which a document cannot
//! express.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::shell::EchoedCommand;
use crate::stopwatch::Stopwatch;
use crate::tools;
use crate::workspace::CargoWorkspace;

/// The number of generated requests for each route, in addition to those that cover each rule of the document.
const EXAMPLES: &str = "25";
/// A fixed seed, so that a finding can be reproduced.
const SEED: &str = "4870";

/// Starts a daemon, runs schemathesis, and fails on any finding. Further arguments go to schemathesis.
pub(crate) fn run(workspace: &CargoWorkspace, args: &[String]) -> Result<()> {
    let schemathesis = ensure_installed(workspace)?;
    EchoedCommand::new("cargo")
        .args(["build", "--quiet", "--package", "abide"])
        .dir(&workspace.root)
        .run()?;
    let home = workspace.root.join(".cache/schemathesis-home");
    // The folder does not exist at the first run.
    fs::remove_dir_all(&home).ok();
    fs::create_dir_all(&home).with_context(|| format!("could not create {}", home.display()))?;
    let daemon = SchemathesisDaemon::start(&workspace.target.join("debug/abide"), &home)?;
    let result = EchoedCommand::new(schemathesis)
        .arg("--config-file")
        .arg(workspace.root.join("xtask/schemathesis/schemathesis.toml"))
        .arg("run")
        .arg(format!("{}/openapi.json", daemon.url))
        .arg("--header")
        .arg(format!("Authorization: Bearer {}", daemon.token))
        // Without this header, events would be an endless stream.
        .args(["--header", "Accept: application/json"])
        .args(["--exclude-path", "/v1/stop"])
        // A request that rotates the owner's token would make all later ones unauthorised.
        .args(["--exclude-path", "/v1/tokens/{name}/rotate"])
        .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"])
        .args([
            "--max-examples",
            EXAMPLES,
            "--seed",
            SEED,
            "--request-timeout",
            "30",
            "--continue-on-failure",
        ])
        .args(["--suppress-health-check", "all", "--warnings", "off"])
        .args(args)
        .dir(&home)
        .run();
    let stopped = daemon.stop();
    result.context("the HTTP interface differs from its OpenAPI document")?;
    stopped
}

/// Returns the program, installed once for the list of packages in `xtask/schemathesis`.
fn ensure_installed(workspace: &CargoWorkspace) -> Result<PathBuf> {
    let list = workspace.root.join("xtask/schemathesis/requirements.txt");
    let requirements =
        fs::read_to_string(&list).with_context(|| format!("could not read {}", list.display()))?;
    let folder = workspace.root.join(".cache/schemathesis");
    let (program, installed) = (folder.join("bin/schemathesis"), folder.join("installed.txt"));
    if program.is_file() && fs::read_to_string(&installed).is_ok_and(|had| had == requirements) {
        return Ok(program);
    }
    let watch = Stopwatch::start();
    eprintln!("missing: schemathesis; installing it once into .cache/schemathesis");
    EchoedCommand::new(tools::python()?).args(["-m", "venv", "--clear"]).arg(&folder).run()?;
    EchoedCommand::new(folder.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(&list)
        .run()?;
    fs::write(&installed, requirements).context("could not record the installed list")?;
    eprintln!("installed schemathesis in {}", watch.read());
    Ok(program)
}

/// A daemon for the duration of the test.
struct SchemathesisDaemon {
    child: std::process::Child,
    url: String,
    token: String,
}

impl SchemathesisDaemon {
    fn start(binary: &Path, home: &Path) -> Result<Self> {
        let log = File::create(home.join("daemon.log")).context("could not create the daemon's log")?;
        let mut child = EchoedCommand::new(binary)
            .args(["up", "--listen", "127.0.0.1:0"])
            .env("ABIDE_HOME", home)
            // The rate limit is for clients that are slower than this one.
            .env("ABIDE_HTTP_REQUESTS_PER_SECOND", "0")
            .start_with_pipes(log)?;
        let output = child.stdout.take().context("the daemon has no output")?;
        let mut url = String::new();
        BufReader::new(output).read_line(&mut url).context("the daemon printed no address")?;
        let token = fs::read_to_string(home.join("token")).unwrap_or_default();
        let daemon = Self { child, url: url.trim().to_owned(), token };
        ensure!(
            daemon.url.starts_with("http://"),
            "the daemon did not start; see {}/daemon.log",
            home.display()
        );
        Ok(daemon)
    }

    /// Stops the daemon in order. A daemon that a request has damaged is detected here at the latest.
    fn stop(mut self) -> Result<()> {
        let address = self.url.trim_start_matches("http://").to_owned();
        let response = (|| -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&address)?;
            write!(
                stream,
                "POST /v1/stop HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
                self.token
            )?;
            let mut response = String::new();
            stream.read_to_string(&mut response)?;
            Ok(response)
        })();
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                // The daemon may have exited.
                self.child.kill().ok();
                self.child.wait().ok();
                return Err(error).context("the daemon does not respond any more");
            }
        };
        if !response.starts_with("HTTP/1.1 200") {
            self.child.kill().ok();
            self.child.wait().ok();
            bail!("the daemon did not stop in order: {response}");
        }
        let status = self.child.wait().context("could not wait for the daemon")?;
        ensure!(status.success(), "the daemon ended with {status}");
        Ok(())
    }
}
