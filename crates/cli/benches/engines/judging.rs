//! Compares the rounds of an engine with the limit, and formats the table of all engines.

use crate::{
    figures::{median, ms, spread},
    ours::DaemonTurnTimes,
    turns::{BenchRounds, PARROT},
};

/// The maximum ratio of our time to the bare program's time.
const MAX_OVERHEAD_RATIO: f64 = 0.02;

/// The result of one engine.
pub(crate) struct JudgedEngine {
    name: String,
    outcome: Result<JudgedFigures, String>,
}

struct JudgedFigures {
    rounds: usize,
    /// Our directly measured time, as a share of the bare turn.
    share: f64,
    /// The same share from the difference of whole turns, and its noise.
    difference: f64,
    noise: f64,
    bare: f64,
    bare_session: f64,
    own: f64,
    examined: f64,
    /// The delay of its input compared with the bare program, from the start of the program.
    input: f64,
    /// The time from reading the session handle to its commit.
    naming: f64,
    /// The parts of our own time.
    parts: Vec<(&'static str, f64)>,
}

impl JudgedEngine {
    pub(crate) fn not_measured(name: &str, reason: String) -> Self {
        Self { name: name.to_owned(), outcome: Err(reason) }
    }

    pub(crate) fn of(name: &str, rounds: &BenchRounds) -> Self {
        let ours = |part: fn(&DaemonTurnTimes) -> f64| median(rounds.ours.iter().map(part));
        let bare = median(rounds.bare.iter().map(|bare| bare.total));
        let bare_session = median(rounds.bare.iter().map(|bare| bare.session));
        let later = ours(|ours| ours.to_handle) - bare_session;
        let noise = spread(rounds.bare.iter().map(|bare| bare.session))
            .max(spread(rounds.ours.iter().map(|ours| ours.to_handle)));
        let figures = JudgedFigures {
            rounds: rounds.bare.len(),
            share: ours(DaemonTurnTimes::own) / bare,
            difference: (later + ours(DaemonTurnTimes::after)) / bare,
            noise: noise / bare,
            bare,
            bare_session,
            own: ours(DaemonTurnTimes::own),
            examined: ours(|ours| ours.probe),
            input: ours(|ours| ours.until_registered)
                - median(rounds.bare.iter().map(|bare| bare.input_written)),
            naming: ours(|ours| ours.until_handle_committed),
            parts: vec![
                ("committing and taking up the order", ours(|ours| ours.until_keeper_call)),
                ("until the keeper starts the program", ours(|ours| ours.until_spawn)),
                ("hearing of the end", ours(|ours| ours.until_exit_read)),
                ("committing the end", ours(|ours| ours.until_end_committed)),
            ],
        };
        Self { name: name.to_owned(), outcome: Ok(figures) }
    }

    /// Formats a row of the table.
    pub(crate) fn row(&self) -> String {
        let word = match self.verdict() {
            BenchVerdict::Passed => "PASS",
            BenchVerdict::Failed => "MISS",
            BenchVerdict::NoLimit => "for scale",
            BenchVerdict::NotMeasured => "",
        };
        match &self.outcome {
            Err(reason) => format!("{:<12} NOT MEASURED: {reason}", self.name),
            Ok(figures) => format!(
                "{:<12} {:>5.2} %  {word:<9} {:>18} {:>9} {:>11} {:>13} {:>11} {:>3}",
                self.name,
                figures.share * 100.0,
                figures.subtracted(),
                ms(figures.own),
                ms(figures.bare),
                ms(figures.bare_session),
                ms(figures.examined),
                figures.rounds,
            ),
        }
    }

    fn verdict(&self) -> BenchVerdict {
        match &self.outcome {
            Err(_) => BenchVerdict::NotMeasured,
            Ok(_) if self.name == PARROT => BenchVerdict::NoLimit,
            Ok(figures) if figures.share <= MAX_OVERHEAD_RATIO => BenchVerdict::Passed,
            Ok(_) => BenchVerdict::Failed,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BenchVerdict {
    Passed,
    Failed,
    /// It has no limit.
    NoLimit,
    NotMeasured,
}

/// Prints the table. Returns whether all engines are within their limits.
pub(crate) fn report(judged: &[JudgedEngine]) -> bool {
    println!(
        "\nour time in a turn, as a share of the bare program's own; medians; at most {:.0} % is wanted",
        MAX_OVERHEAD_RATIO * 100.0
    );
    println!(
        "{:<12} {:>7}  {:<9} {:>18} {:>9} {:>11} {:>13} {:>11} {:>3}",
        "", "share", "", "by subtraction", "ours", "bare turn", "bare session", "examining", "n"
    );
    judged.iter().for_each(|one| println!("{}", one.row()));
    for one in judged {
        if let Ok(figures) = &one.outcome {
            println!("{}", figures.limits(&one.name));
        }
    }
    println!(
        "share is measured directly and is everything that is waited for: from the order's stamp (before its commit) \
         until its keeper is about to start the program, and from the keeper's noting the exit, or from the last words \
         being heard, until the end is committed. Starting the program is its own time, as the bare clock begins before \
         that too; so is what we do while it runs: how much later its input comes for that, and how long the handle \
         takes to be committed after it was heard, is told with the limits. That words come through the keeper, and \
         what our work takes from the program on the same processors, is seen by subtraction only: from the order to \
         the handle and from the last words to the committed end through us, less the bare program's way to its handle, \
         in brackets where it is no more than the rounds differ among themselves. Examining is before a run's first \
         turn and no part of either"
    );
    judged.iter().all(|one| one.verdict() != BenchVerdict::Failed)
}

impl JudgedFigures {
    fn subtracted(&self) -> String {
        let (difference, noise) = (self.difference * 100.0, self.noise * 100.0);
        if difference.abs() <= noise {
            format!("({difference:.1} +-{noise:.1} %)")
        } else {
            format!("{difference:.1} +-{noise:.1} %")
        }
    }

    fn limits(&self, name: &str) -> String {
        let mut parts = self.parts.clone();
        parts.sort_by(|one, other| other.1.total_cmp(&one.1));
        let text: Vec<String> = parts.iter().map(|(label, time)| format!("{label} {}", ms(*time))).collect();
        format!(
            "{name}: limited by {}; while it runs, and not counted: input {} later than bare, the handle committed {} \
             after it was heard",
            text.join(", "),
            ms(self.input),
            ms(self.naming)
        )
    }
}
