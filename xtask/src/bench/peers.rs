//! Compares our terminal runtime with programs of other projects: the list of peers, and the order of measurements.
//!
//! Each peer is measured alone, alternating with ours and with the floor, so that noise of the machine affects all
//! three alike. The small drivers in `xtask/bench/peers` call the peers, each in the language of the peer's users. A
//! peer that is not available is reported, never dropped. None of this is part of CI.

mod contestant;
mod driver;
mod home;
mod install;
mod report;

use std::num::NonZero;
use std::path::Path;
use std::{fs, thread};

use anyhow::{Context, Result, bail};

use self::contestant::{AbideShell, FloorShell, TimedShell};
use self::driver::PeerDriver;
use self::home::PeerHome;
use self::install::PeerKit;
use self::report::{PeerFigures, PeerOutcome, PeerReport, PeerRow};
use crate::shell::{self, EchoedCommand};
use crate::workspace::CargoWorkspace;

/// The selected parts of the terminal benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerSelection {
    part: PeerPart,
    write: PeerOutput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerPart {
    Everything,
    OwnFigures,
    Peers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerOutput {
    Nothing,
    Document,
}

impl PeerSelection {
    /// Separates our own flags from the arguments for the benchmark itself.
    pub(super) fn split(args: &[String]) -> Result<(Self, Vec<String>)> {
        let (ours, rest): (Vec<&String>, Vec<&String>) =
            args.iter().partition(|arg| ["--no-peers", "--only-peers", "--write"].contains(&arg.as_str()));
        let has = |flag: &str| ours.iter().any(|arg| *arg == flag);
        let part = match (has("--no-peers"), has("--only-peers")) {
            (false, false) => PeerPart::Everything,
            (true, false) => PeerPart::OwnFigures,
            (false, true) => PeerPart::Peers,
            (true, true) => bail!("--no-peers and --only-peers leave nothing to measure"),
        };
        let write = if has("--write") { PeerOutput::Document } else { PeerOutput::Nothing };
        if part == PeerPart::OwnFigures && write == PeerOutput::Document {
            bail!("--write writes the comparison with the peers, and --no-peers leaves them out");
        }
        Ok((Self { part, write }, rest.into_iter().cloned().collect()))
    }

    pub(super) fn own_figures(self) -> bool {
        self.part != PeerPart::Peers
    }
}

/// A program that is compared with ours, used in one of its modes.
struct PeerProgram {
    name: &'static str,
    kit: PeerKit,
    driver: &'static str,
    args: &'static [&'static str],
    samples: SampleCount,
    /// The work done for each command.
    does: &'static str,
    /// Differences that distort the comparison, in either direction.
    differs: &'static str,
}

/// The number of timed commands. Slow peers get fewer samples.
#[derive(Clone, Copy)]
enum SampleCount {
    Many,
    Few,
}

impl SampleCount {
    fn count(self) -> usize {
        match self {
            Self::Many => 1000,
            Self::Few => 100,
        }
    }
}

const PEERS: &[PeerProgram] = &[
    PeerProgram {
        name: "Codex command/exec/write",
        kit: PeerKit::Npm("codex"),
        driver: "codex_driver.mjs",
        args: &["held"],
        samples: SampleCount::Many,
        does: "writes to a running bash; the client waits for its own marker",
        differs: "marker and exit code are the client's; the server only transports bytes",
    },
    PeerProgram {
        name: "pexpect, delay off",
        kit: PeerKit::Pip("pexpect"),
        driver: "pexpect_driver.py",
        args: &["no-delay"],
        samples: SampleCount::Many,
        does: "writes to a pseudo-terminal and matches the prompt",
        differs: "a library in the client, without a second process and without exit codes; the delay is on by default",
    },
    PeerProgram {
        name: "MCP server-commands",
        kit: PeerKit::Npm("mcp-commands"),
        driver: "mcp_driver.mjs",
        args: &["commands", "fresh"],
        samples: SampleCount::Many,
        does: "starts a new sh process",
        differs: "no session: directory and variables are lost after each command",
    },
    PeerProgram {
        name: "Codex command/exec",
        kit: PeerKit::Npm("codex"),
        driver: "codex_driver.mjs",
        args: &["fresh"],
        samples: SampleCount::Many,
        does: "starts a new process without a shell",
        differs: "no session: no state is kept between commands",
    },
    PeerProgram {
        name: "OpenHands, subprocess",
        kit: PeerKit::Pip("openhands"),
        driver: "openhands_driver.py",
        args: &["subprocess"],
        samples: SampleCount::Few,
        does: "polls a pseudo-terminal for its prompt",
        differs: "a library in the client; OpenHands uses it if tmux is missing",
    },
    PeerProgram {
        name: "pexpect",
        kit: PeerKit::Pip("pexpect"),
        driver: "pexpect_driver.py",
        args: &["default"],
        samples: SampleCount::Few,
        does: "sleeps 50 ms, then as with the delay off",
        differs: "the sleep is its default and avoids races with programs that disable echo",
    },
    PeerProgram {
        name: "DesktopCommander",
        kit: PeerKit::Npm("desktop-commander"),
        driver: "mcp_driver.mjs",
        args: &["desktop", "held"],
        samples: SampleCount::Few,
        does: "writes to a running bash and polls for its prompt every 50 ms",
        differs: "reports no exit code; also keeps a history and searches for Python each time",
    },
    PeerProgram {
        name: "OpenHands, tmux",
        kit: PeerKit::Pip("openhands"),
        driver: "openhands_driver.py",
        args: &["tmux"],
        samples: SampleCount::Few,
        does: "polls the captured screen of a tmux pane",
        differs: "also renders a screen and reads directory and user from the prompt",
    },
    PeerProgram {
        name: "SWE-ReX",
        kit: PeerKit::Pip("swe-rex"),
        driver: "swerex_driver.py",
        args: &[],
        samples: SampleCount::Few,
        does: "parses the command, writes it to a pseudo-terminal, matches the prompt, asks for the exit code",
        differs: "its local runtime in the client, without the HTTP server that most users have",
    },
];

/// Our own runtime, called as the peers are. This shows the cost of the client's language.
const CONTROLS: &[PeerProgram] = &[
    PeerProgram {
        name: "Abide from Node",
        kit: PeerKit::Node,
        driver: "abide_driver.mjs",
        args: &[],
        samples: SampleCount::Many,
        does: "",
        differs: "",
    },
    PeerProgram {
        name: "Abide from Python",
        kit: PeerKit::Python,
        driver: "abide_driver.py",
        args: &[],
        samples: SampleCount::Many,
        does: "",
        differs: "",
    },
];

pub(super) fn run(workspace: &CargoWorkspace, selection: PeerSelection) -> Result<()> {
    if selection.part == PeerPart::OwnFigures {
        return Ok(());
    }
    let binary = workspace.target.join("release/abide");
    let before = load_average();
    let (rows, controls) =
        (measure_all(workspace, &binary, PEERS)?, measure_all(workspace, &binary, CONTROLS)?);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let report = PeerReport {
        load: format!("load {before} before and {} after on {cores} cores", load_average()),
        date: EchoedCommand::new("date").args(["--utc", "+%F"]).read()?.trim().to_owned(),
        abide: EchoedCommand::new(&binary).arg("--version").read()?.trim().to_owned(),
        rows,
        controls,
    };
    println!("\n{}", report.for_terminal());
    match selection.write {
        PeerOutput::Nothing => {}
        PeerOutput::Document => {
            let path = workspace.root.join("docs/benchmarks.md");
            fs::write(&path, report.for_document()).context("could not write docs/benchmarks.md")?;
            eprintln!("wrote docs/benchmarks.md");
        }
    }
    match report.faster_peers().as_slice() {
        [] => Ok(()),
        faster => bail!("not ahead of every peer: {}", faster.join(", ")),
    }
}

/// Returns the load average of the last minute.
fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn measure_all(workspace: &CargoWorkspace, binary: &Path, peers: &[PeerProgram]) -> Result<Vec<PeerRow>> {
    let mut rows = Vec::new();
    for peer in peers {
        eprintln!("measuring {}", peer.name);
        let outcome = match measure(workspace, binary, peer) {
            Ok(figures) => {
                eprintln!("  {}", figures.summary());
                PeerOutcome::Measured(figures)
            }
            Err(_) if shell::interrupted() => bail!("interrupted"),
            Err(error) => {
                eprintln!("NOT MEASURED: {}: {error:#}", peer.name);
                PeerOutcome::NotMeasured(format!("{error:#}"))
            }
        };
        rows.push(PeerRow { name: peer.name, does: peer.does, differs: peer.differs, outcome });
    }
    Ok(rows)
}

/// Measures ours, the floor and the peer in turns.
fn measure(workspace: &CargoWorkspace, binary: &Path, peer: &PeerProgram) -> Result<PeerFigures> {
    let program = peer.kit.ensure_installed(workspace)?;
    let home = PeerHome::create(workspace)?;
    let mut theirs =
        PeerDriver::start(program.command(workspace, peer.driver, binary).args(peer.args), &home)?;
    let mut ours = AbideShell::start(binary, &home)?;
    let mut floor = FloorShell::start(&home)?;
    let (mut our_times, mut floor_times, mut their_times) = (Vec::new(), Vec::new(), Vec::new());
    let each = peer.samples.count() / ROUNDS;
    ours.ask(WARM_UP_COMMANDS)?;
    floor.ask(WARM_UP_COMMANDS)?;
    theirs.ask(each)?;
    for _ in 0..ROUNDS {
        our_times.extend(ours.ask(SampleCount::Many.count() / ROUNDS)?);
        floor_times.extend(floor.ask(SampleCount::Many.count() / ROUNDS)?);
        their_times.extend(theirs.ask(each)?);
        if shell::interrupted() {
            bail!("interrupted");
        }
    }
    Ok(PeerFigures::new(theirs.version().to_owned(), our_times, floor_times, their_times))
}

const ROUNDS: usize = 10;
const WARM_UP_COMMANDS: usize = 100;

#[cfg(test)]
mod tests {
    use super::{PeerOutput, PeerPart, PeerSelection};

    fn split(args: &[&str]) -> Result<(PeerSelection, Vec<String>), String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        PeerSelection::split(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn our_flags_are_taken_out_and_the_rest_is_passed_on() {
        let (selection, rest) = split(&["--rounds", "--only-peers", "5", "--write"]).unwrap();
        assert_eq!(selection, PeerSelection { part: PeerPart::Peers, write: PeerOutput::Document });
        assert_eq!(rest, ["--rounds", "5"]);
        assert!(!selection.own_figures());
    }

    #[test]
    fn flags_that_leave_nothing_to_do_are_refused() {
        split(&["--no-peers", "--only-peers"]).unwrap_err();
        split(&["--no-peers", "--write"]).unwrap_err();
    }
}
