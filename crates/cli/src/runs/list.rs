//! `abide ls` and `abide inbox`: runs and open questions, one in a row.

use std::{io::IsTerminal, io::Write, process::ExitCode};

use abide_wire::{interaction::Interaction, run::Run};

use super::{print_json, status_look, status_word, voice, when};
use crate::{
    args::{Inbox, Ls},
    client::Client,
    config::Given,
    exit::SUCCEEDED,
    table::{self, Cell, Colour, Look},
    text,
    trouble::note,
};

pub(crate) fn ls(arguments: &Ls, given: &[Given]) -> anyhow::Result<ExitCode> {
    let client = Client::connect(given)?;
    let most = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let runs = client.runs(arguments.status.map(status_word), most)?;
    if arguments.output.json {
        print_json(&runs)?;
        return Ok(SUCCEEDED);
    }
    if runs.is_empty() {
        note("abide: no such runs; `abide run ENGINE PROMPT` starts one");
        return Ok(SUCCEEDED);
    }
    let head =
        ["RUN", "STATUS", "ENGINE", "TURN", "AGE", "SAYS"].map(|title| Look::Head.cell(title)).to_vec();
    print(std::iter::once(head).chain(runs.iter().map(row)).collect())?;
    if runs.len() == most {
        note(format_args!("abide: only the newest {most} are listed; --limit lists more"));
    }
    Ok(SUCCEEDED)
}

fn row(run: &Run) -> Vec<Cell> {
    let says = match (&run.error, &run.result, run.queue_position, &run.stalled_since) {
        (_, _, Some(place), _) => format!("{place} in the queue"),
        (_, _, _, Some(since)) => format!("silent for {}", when::ago(since)),
        (Some(error), ..) => format!("{}: {}", error.code, error.message),
        (None, Some(result), ..) => result.text.clone(),
        (None, None, ..) => String::new(),
    };
    vec![
        Look::Plain.cell(&run.run_id),
        status_look(run.status).cell(status_word(run.status)),
        Look::Plain.cell(text::one_line(&run.engine)),
        Look::Plain.cell(run.turn_index.to_string()),
        Look::Plain.cell(when::ago(&run.created_at)),
        Look::Plain.cell(text::one_line(&says)),
    ]
}

pub(crate) fn inbox(arguments: &Inbox, given: &[Given]) -> anyhow::Result<ExitCode> {
    let client = Client::connect(given)?;
    let most = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let open = client.inbox(most)?;
    if arguments.output.json {
        print_json(&open)?;
        return Ok(SUCCEEDED);
    }
    if open.is_empty() {
        note("abide: nobody asks anything");
        return Ok(SUCCEEDED);
    }
    let head = ["QUESTION", "RUN", "AGE", "UNTIL", "ASKS"].map(|title| Look::Head.cell(title)).to_vec();
    print(std::iter::once(head).chain(open.iter().map(question)).collect())?;
    note("abide: answer with: abide reply QUESTION TEXT, or the number of an option");
    Ok(SUCCEEDED)
}

fn question(asked: &Interaction) -> Vec<Cell> {
    let options: Vec<String> = asked
        .options
        .iter()
        .enumerate()
        .map(|(index, option)| format!("{}) {}", index + 1, text::one_line(&option.label)))
        .collect();
    let asks = format!("{}  {}", text::one_line(&asked.prompt), options.join("  "));
    let until = asked.deadline_at.as_deref().map_or_else(|| "-".to_owned(), when::until);
    vec![
        Look::Plain.cell(&asked.interaction_id),
        Look::Plain.cell(&asked.run_id),
        Look::Plain.cell(when::ago(&asked.opened_at)),
        Look::Plain.cell(until),
        Look::Careful.cell(asks.trim_end()),
    ]
}

/// How much of the last column is shown at the least, however narrow the terminal is.
const LEAST: usize = 20;
/// How much of it is shown where there is no terminal.
const UNSEEN: usize = 120;

/// Prints the rows, the last column cut so that each fits into a line.
fn print(mut rows: Vec<Vec<Cell>>) -> anyhow::Result<()> {
    let fixed: usize = (0..rows.first().map_or(0, Vec::len).saturating_sub(1))
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| text::width(&cell.text)).max().unwrap_or(0) + 2
        })
        .sum();
    let mut out = std::io::stdout().lock();
    let room = if out.is_terminal() { voice::columns().saturating_sub(fixed).max(LEAST) } else { UNSEEN };
    for cell in rows.iter_mut().filter_map(|row| row.last_mut()) {
        cell.text = text::cut(&cell.text, room);
    }
    for line in table::lines(&rows, Colour::of_stdout()) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
