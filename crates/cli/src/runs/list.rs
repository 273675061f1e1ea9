//! `abide ls` and `abide inbox`: tables of runs and open questions.

use std::{
    io::{BufRead, BufReader, BufWriter, IsTerminal, Read, Write},
    process::ExitCode,
};

use abide_wire::{interaction::InteractionView, run::RunView};

use super::{print_json, question, status_line, status_name, status_style, times};
use crate::{
    args::{InboxArguments, LsArguments},
    client::DaemonClient,
    config::GivenSetting,
    error::eprint_line,
    exit::SUCCEEDED,
    table::{self, ColourMode, TableCell, TextStyle},
    terminal_text,
};

pub(crate) fn ls(arguments: &LsArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let client = DaemonClient::connect(overrides)?;
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let runs = client.runs(arguments.status.map(status_name), limit)?;
    if arguments.output.json {
        print_json(&runs)?;
        return Ok(SUCCEEDED);
    }
    if runs.is_empty() {
        eprint_line("abide: there are no matching runs; `abide run ENGINE PROMPT` starts one");
        return Ok(SUCCEEDED);
    }
    let head = ["RUN", "STATUS", "ENGINE", "TURN", "AGE", "RESULT"]
        .map(|title| TextStyle::Heading.cell(title))
        .to_vec();
    print_rows(std::iter::once(head).chain(runs.iter().map(row)).collect())?;
    if runs.len() == limit {
        eprint_line(format_args!("abide: only the newest {limit} are listed; --limit lists more"));
    }
    Ok(SUCCEEDED)
}

fn row(run: &RunView) -> Vec<TableCell> {
    let result = match (&run.error, &run.result, run.queue_position, &run.stalled_since) {
        _ if run.blocked_reason.is_some() => run.blocked_reason.clone().unwrap_or_default(),
        (_, _, Some(place), _) => format!("{place} in the queue"),
        (_, _, _, Some(since)) => format!("silent for {}", times::elapsed_since(since)),
        (Some(error), ..) => format!("{}: {}", error.code, error.message),
        (None, Some(result), ..) => result.text.clone(),
        (None, None, ..) => String::new(),
    };
    vec![
        TextStyle::Plain.cell(&run.run_id),
        status_style(run.status).cell(status_name(run.status)),
        TextStyle::Plain.cell(terminal_text::one_line(&run.engine)),
        TextStyle::Plain.cell(run.turn_index.to_string()),
        TextStyle::Plain.cell(times::elapsed_since(&run.created_at)),
        TextStyle::Plain.cell(terminal_text::one_line(&result)),
    ]
}

pub(crate) fn inbox(arguments: &InboxArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let client = DaemonClient::connect(overrides)?;
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let open = client.inbox(limit)?;
    if arguments.output.json {
        print_json(&open)?;
        return Ok(SUCCEEDED);
    }
    if open.is_empty() {
        eprint_line("abide: there are no open questions");
        return Ok(SUCCEEDED);
    }
    if arguments.full {
        return print_full(&client, &open);
    }
    let head = ["INTERACTION", "RUN", "AGE", "DEADLINE", "QUESTION"]
        .map(|title| TextStyle::Heading.cell(title))
        .to_vec();
    print_rows(std::iter::once(head).chain(open.iter().map(question_row)).collect())?;
    eprint_line("abide: answer with: abide reply INTERACTION TEXT, or the number of an option");
    if open.iter().any(|question| question.hidden.is_some()) {
        eprint_line("abide: some of them are not shown completely: abide inbox --full shows the whole text");
    }
    Ok(SUCCEEDED)
}

/// Prints each question with its full content and the command that answers it.
fn print_full(client: &DaemonClient, open: &[InteractionView]) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let colour = ColourMode::of_stdout();
    for question in open {
        let title = format!("{}  {}", question.interaction_id, question.run_id);
        writeln!(
            out,
            "{}  {} ago",
            colour.text(TextStyle::Heading, title),
            times::elapsed_since(&question.opened_at)
        )?;
        match &question.hidden {
            None => {
                for line in question::lines(question, colour) {
                    writeln!(out, "{line}")?;
                }
            }
            Some(_) => {
                let mut content = BufReader::new(client.content(&question.interaction_id)?);
                let mut line = Vec::new();
                // A line may be as long as the whole content, so it is read in pieces.
                while content.by_ref().take(PIECE_BYTES).read_until(b'\n', &mut line)? > 0 {
                    let whole = match std::str::from_utf8(&line) {
                        Ok(_) => line.len(),
                        Err(error) => error.valid_up_to(),
                    };
                    let rest = line.split_off(if whole == 0 { line.len() } else { whole });
                    write!(out, "{}", terminal_text::escape_control_chars(&String::from_utf8_lossy(&line)))?;
                    line = rest;
                }
            }
        }
        let answer = question::full_reply_command(question);
        writeln!(out, "{}\n", colour.text(TextStyle::Dim, format!("answer with: {answer}")))?;
    }
    out.flush()?;
    Ok(SUCCEEDED)
}

/// Size of the pieces, in bytes.
const PIECE_BYTES: u64 = 64 << 10;

fn question_row(question: &InteractionView) -> Vec<TableCell> {
    let options: Vec<String> = question
        .options
        .iter()
        .enumerate()
        .map(|(index, option)| format!("{}) {}", index + 1, terminal_text::one_line(&option.label)))
        .collect();
    let prompt = format!("{}  {}", terminal_text::one_line(&question.prompt), options.join("  "));
    let deadline = question.deadline_at.as_deref().map_or_else(|| "-".to_owned(), times::time_until);
    vec![
        TextStyle::Plain.cell(&question.interaction_id),
        TextStyle::Plain.cell(&question.run_id),
        TextStyle::Plain.cell(times::elapsed_since(&question.opened_at)),
        TextStyle::Plain.cell(deadline),
        TextStyle::Warning.cell(prompt.trim_end()),
    ]
}

/// Minimum width of the last column, in columns.
const MIN_COLUMN_WIDTH: usize = 20;
/// Width of the last column if the output is not a terminal.
const PIPE_COLUMN_WIDTH: usize = 120;

/// Prints the rows. The last column is truncated so that each row fits into a line.
fn print_rows(mut rows: Vec<Vec<TableCell>>) -> anyhow::Result<()> {
    let fixed: usize = (0..rows.first().map_or(0, Vec::len).saturating_sub(1))
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| terminal_text::width(&cell.text)).max().unwrap_or(0) + 2
        })
        .sum();
    let mut out = std::io::stdout().lock();
    let room = if out.is_terminal() {
        status_line::terminal_width().saturating_sub(fixed).max(MIN_COLUMN_WIDTH)
    } else {
        PIPE_COLUMN_WIDTH
    };
    for cell in rows.iter_mut().filter_map(|row| row.last_mut()) {
        cell.text = terminal_text::truncate(&cell.text, room);
    }
    for line in table::format_rows(&rows, ColourMode::of_stdout()) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
