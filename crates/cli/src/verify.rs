//! `abide verify`: compares the tables with the journal, and repairs them on request.
//!
//! The store does the work (`verification`). This module prints progress and advises on findings.

use std::{io::IsTerminal, process::ExitCode};

use abide_ports::store::{JournalMismatch, Store, StoreFlaw};
use abide_store::{
    registry::{self, OpenedStore, StoreOptions},
    verification::{self, VerificationFinding, VerificationProgress, VerificationReport},
};
use anyhow::Context;
use serde_json::json;

use crate::{
    args::VerifyArguments,
    config::{self, GivenSetting},
    error::{CliError, eprint_line},
    exit::{FAILED, SUCCEEDED},
    home, store,
    up::DaemonAddress,
};

pub(crate) fn run(arguments: &VerifyArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let config = config::load(overrides)?.config;
    if arguments.repair
        && let Some(daemon) = DaemonAddress::find(&home::home()?)
    {
        let pid = daemon.process.pid;
        let detail = format!(
            "a daemon uses the tables (pid {pid}), so they cannot be rebuilt now; stop it first: abide down --keep"
        );
        return Err(CliError::failure("DAEMON_RUNNING", detail).into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(verify(&config.store, arguments))
}

async fn verify(url: &str, arguments: &VerifyArguments) -> anyhow::Result<ExitCode> {
    let opening = StoreOptions { home: Some(home::home()?), read_only: true, ..StoreOptions::default() };
    let OpenedStore { store, .. } = registry::open_with(url, opening).await.map_err(store::open_error)?;
    let mut progress_line = VerifyProgress::default();
    let mut report = verification::verify(&*store, |progress| progress_line.show(progress)).await?;
    progress_line.clear();
    let mut rebuilt = None;
    if arguments.repair && !report.is_clean() && advice(&report) == VerifyAdvice::Repair {
        rebuilt = Some(repair(&*store).await?);
        report = verification::verify(&*store, |progress| progress_line.show(progress)).await?;
        progress_line.clear();
    }
    print_report(arguments, &report, rebuilt)?;
    Ok(if report.is_clean() { SUCCEEDED } else { FAILED })
}

async fn repair(store: &dyn Store) -> anyhow::Result<u64> {
    let mut progress_line = VerifyProgress::default();
    let rebuilt = verification::rebuild(store, |progress| progress_line.show(progress)).await;
    progress_line.clear();
    rebuilt.context("the tables could not be rebuilt")
}

/// Advice for the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerifyAdvice {
    /// The journal is intact: the tables can be rebuilt.
    Repair,
    Restore,
    AcceptLoss,
}

fn advice(report: &VerificationReport) -> VerifyAdvice {
    let tables_only = |finding: &VerificationFinding| match finding {
        VerificationFinding::Difference(JournalMismatch::Rows { .. })
        | VerificationFinding::DamagedRow { .. }
        | VerificationFinding::Flaw(StoreFlaw::Derived { .. } | StoreFlaw::Note { .. }) => true,
        VerificationFinding::Flaw(StoreFlaw::InputLost { .. } | StoreFlaw::Journal { .. }) => false,
        VerificationFinding::Difference(
            JournalMismatch::EventRefused { .. } | JournalMismatch::Revision { .. },
        )
        | VerificationFinding::SequenceGap { .. }
        | VerificationFinding::JournalTruncated { .. }
        | VerificationFinding::DamagedEntry { .. } => false,
    };
    let is_lost = |finding: &VerificationFinding| {
        matches!(finding, VerificationFinding::Flaw(StoreFlaw::InputLost { .. }))
    };
    match report.findings.iter().all(tables_only) {
        true => VerifyAdvice::Repair,
        false if report.findings.iter().any(is_lost) => VerifyAdvice::AcceptLoss,
        false => VerifyAdvice::Restore,
    }
}

impl VerifyAdvice {
    fn text(self) -> &'static str {
        match self {
            Self::Repair => {
                "the journal is intact, so the tables can be rebuilt: abide down --keep && abide verify --repair"
            }
            Self::Restore => {
                "the journal itself is damaged: abide down, and restore a backup with abide restore FILE, which keeps the previous database"
            }
            Self::AcceptLoss => {
                "acknowledged input is missing: restore a backup with abide restore FILE, or continue without it with abide up --accept-loss"
            }
        }
    }
}

fn print_report(
    arguments: &VerifyArguments,
    report: &VerificationReport,
    rebuilt: Option<u64>,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let clean = report.is_clean();
    let advice = (!clean).then(|| advice(report).text());
    if arguments.output.json {
        let value = json!({
            "ok": clean,
            "entries": report.entries,
            "runs": report.runs,
            "findings": report.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "further_findings": report.further_findings,
            "notes": report.notes,
            "rebuilt": rebuilt,
            "advice": advice,
        });
        std::io::Write::write_fmt(&mut out, format_args!("{value}\n"))?;
        return Ok(());
    }
    let mut text = String::new();
    if let Some(rebuilt) = rebuilt {
        text += &format!("the tables of {rebuilt} runs were rebuilt\n");
    }
    for finding in &report.findings {
        text += &format!("{finding}\n");
    }
    if report.further_findings > 0 {
        text += &format!("and {} more\n", report.further_findings);
    }
    let verdict = if clean { "consistent" } else { "inconsistent" };
    text += &format!("{} entries, {} runs: {verdict}\n", report.entries, report.runs);
    std::io::Write::write_all(&mut out, text.as_bytes())?;
    for remark in &report.notes {
        eprint_line(format_args!("abide: {remark}"));
    }
    if let Some(advice) = advice {
        eprint_line(format_args!("abide: {advice}"));
    }
    Ok(())
}

/// Progress on standard error: a line that is redrawn on a terminal, occasional lines elsewhere.
#[derive(Debug, Default)]
pub(crate) struct VerifyProgress {
    calls: u64,
    line_drawn: bool,
}

/// Number of pages (of 500 entries) between two lines if the output is not a terminal.
const PAGES_PER_LINE: u64 = 100;

impl VerifyProgress {
    fn show(&mut self, progress: VerificationProgress) {
        let text = match progress {
            VerificationProgress::Entries(read, all) => format!("entries of the journal: {read} of {all}"),
            VerificationProgress::Runs(runs) => format!("runs: {runs}"),
        };
        self.line(&text);
    }

    pub(crate) fn line(&mut self, text: &str) {
        self.calls += 1;
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{text}");
            self.line_drawn = true;
        } else if self.calls.is_multiple_of(PAGES_PER_LINE) {
            eprint_line(text);
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.line_drawn {
            eprint!("\r\x1b[K");
            self.line_drawn = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice_on(findings: Vec<VerificationFinding>) -> VerifyAdvice {
        advice(&VerificationReport { findings, ..VerificationReport::default() })
    }

    #[test]
    fn advice_depends_on_the_kind_of_a_finding_and_not_on_its_text() {
        let row = || VerificationFinding::DamagedRow { detail: "a text".to_owned() };
        let entry = || VerificationFinding::DamagedEntry { detail: "row 7".to_owned() };
        let lost = || VerificationFinding::Flaw(StoreFlaw::InputLost { detail: "a text".to_owned() });
        assert_eq!(advice_on(vec![row()]), VerifyAdvice::Repair);
        assert_eq!(advice_on(vec![row(), entry()]), VerifyAdvice::Restore);
        assert_eq!(advice_on(vec![row(), entry(), lost()]), VerifyAdvice::AcceptLoss);
    }
}
