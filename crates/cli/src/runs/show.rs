//! `abide show`: prints all details of a run, from its settings to its answers.

use std::{io::Write, process::ExitCode};

use abide_wire::{
    interaction::{AutoDecideReasonValue, InteractionStateValue, InteractionView, ResolutionModeValue},
    run::{
        AttemptView, ExecutionModeValue, IsolationValue, OnBusyValue, ProfileKindValue, RunErrorView,
        RunOptions, RunView, SandboxValue, TurnView,
    },
};
use serde_json::json;

use super::{find, print_json, question, status_name, status_style, times};
use crate::{
    agent::AgentAccount,
    args::ShowArguments,
    client::DaemonClient,
    config::GivenSetting,
    exit::SUCCEEDED,
    table::{self, ColourMode, TableCell, TextStyle},
    terminal_text,
};

pub(crate) fn run(arguments: &ShowArguments, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let client = DaemonClient::connect(overrides)?;
    let run = find::run(&client, &arguments.run)?;
    let turns = client.turns(&run.run_id)?;
    let questions = client.interactions(&run.run_id)?;
    // The native agent has a journal of its own, in addition to the daemon's records.
    let agent = run.engine_session.as_deref().and_then(|session| AgentAccount::of(&run.workspace, session));
    if arguments.output.json {
        let mut value = json!({ "run": run, "turns": turns, "interactions": questions });
        if let Some(agent) = agent {
            value["agent"] = json!(agent);
        }
        print_json(&value)?;
        return Ok(SUCCEEDED);
    }
    let mut page = ShowPage { lines: Vec::new(), colour: ColourMode::of_stdout() };
    page.head(&run);
    for turn in &turns {
        page.turn(turn);
        for question in questions.iter().filter(|question| question.turn_id == turn.turn_id) {
            page.question(question);
        }
    }
    let has_no_turn =
        |question: &&InteractionView| !turns.iter().any(|turn| turn.turn_id == question.turn_id);
    for question in questions.iter().filter(has_no_turn) {
        page.question(question);
    }
    if let Some(agent) = &agent {
        page.agent(agent);
    }
    page.push_outcome(&run);
    let mut out = std::io::stdout().lock();
    for line in page.lines {
        writeln!(out, "{line}")?;
    }
    Ok(SUCCEEDED)
}

struct ShowPage {
    lines: Vec<String>,
    colour: ColourMode,
}

/// Indentation of the details of a turn.
const INDENT: &str = "  ";

impl ShowPage {
    fn head(&mut self, run: &RunView) {
        let status = self.colour.text(status_style(run.status), status_name(run.status));
        self.lines.push(format!("{}  {status}", self.colour.text(TextStyle::Heading, &run.run_id)));
        let mode = match run.execution_mode {
            ExecutionModeValue::Auto => "auto: never asks",
            ExecutionModeValue::Interactive => "interactive: may ask",
            ExecutionModeValue::Chat => "chat: continues after each answer",
        };
        let mut rows = vec![
            label_row("engine", &run.engine),
            label_row("workspace", &run.workspace),
            label_row("mode", mode),
            label_row(
                "created",
                &format!(
                    "{} ({} ago)",
                    times::date_time(&run.created_at),
                    times::elapsed_since(&run.created_at)
                ),
            ),
            label_row(
                "updated",
                &format!(
                    "{} ({} ago)",
                    times::date_time(&run.updated_at),
                    times::elapsed_since(&run.updated_at)
                ),
            ),
        ];
        if let Some(profile) = &run.profile {
            let mode = match profile.kind {
                ProfileKindValue::Resumable => "without a process".to_owned(),
                ProfileKindValue::StickyProcess => {
                    format!("with its process, {} s at the most", profile.session_timeout_sec)
                }
            };
            rows.push(label_row("wait mode", &format!("{mode}: {}", profile.reason)));
        }
        rows.extend(options(&run.options));
        rows.extend(run.skill.as_deref().map(|skill| label_row("skill", skill)));
        if let Some(conversation) = &run.conversation_ref {
            rows.push(label_row("conversation", conversation));
        }
        rows.extend(run.labels.iter().map(|(name, value)| label_row(&format!("label {name}"), value)));
        if run.auto_decision_count > 0 {
            let last = run.last_auto_decision_at.as_deref().map(times::date_time).unwrap_or_default();
            rows.push(label_row("auto decisions", &format!("{}, last {last}", run.auto_decision_count)));
        }
        if let Some(place) = run.queue_position {
            rows.push(label_row("queue", &format!("{place} in the queue for a slot")));
        }
        if let Some(reason) = &run.blocked_reason {
            rows.push(vec![
                TextStyle::Heading.cell("blocked by"),
                TextStyle::Warning.cell(terminal_text::one_line(reason)),
            ]);
        }
        if let Some(since) = &run.stalled_since {
            let silent = format!("no output for {}; it is not stopped", times::elapsed_since(since));
            rows.push(vec![TextStyle::Heading.cell("stalled"), TextStyle::Warning.cell(silent)]);
        }
        self.rows("", &rows);
    }

    fn turn(&mut self, turn: &TurnView) {
        self.lines.push(String::new());
        let title = format!("turn {}", turn.turn_index);
        let look = if turn.error.is_some() { TextStyle::Error } else { TextStyle::Plain };
        let status = self.colour.text(look, terminal_text::one_line(&turn.execution_status));
        let ended = match &turn.result_persisted_at {
            Some(at) => format!("to {}", times::time_of_day(at)),
            None => format!("process {}", terminal_text::one_line(&turn.runtime_status)),
        };
        let began = times::date_time(&turn.started_at);
        self.lines
            .push(format!("{}  {status}  {began} {ended}", self.colour.text(TextStyle::Heading, title)));
        let cause = match (&turn.interaction_id, &turn.message_id) {
            (Some(interaction), _) => format!("answer to {interaction}"),
            (None, Some(message)) => format!("message {message}"),
            (None, None) => "-".to_owned(),
        };
        let mut rows = vec![label_row("trigger", &cause), label_row("prompt", &turn.prompt_preview)];
        rows.extend(turn.attempts.iter().map(attempt));
        if let Some(error) = &turn.error {
            rows.push(vec![TextStyle::Heading.cell("error"), TextStyle::Error.cell(error_line(error))]);
        }
        let delivered =
            turn.delivered_at.as_deref().map(|at| format!(" {}", times::date_time(at))).unwrap_or_default();
        rows.push(label_row("delivery", &format!("{}{delivered}", turn.delivery_status)));
        if let Some(reason) = &turn.superseded_reason {
            let by = turn.superseded_by_turn_id.as_ref().or(turn.superseded_by_message_id.as_ref());
            let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
            rows.push(label_row("superseded", &format!("{reason}{by}")));
        }
        self.rows(INDENT, &rows);
        if let Some(reply) = turn.reply.as_ref().filter(|reply| !reply.is_empty()) {
            self.lines.push(format!("{INDENT}{}", self.colour.text(TextStyle::Heading, "output")));
            self.push_text(reply);
        }
    }

    fn question(&mut self, question: &InteractionView) {
        let asker = terminal_text::one_line(&question.asked_by);
        self.lines.push(format!(
            "{INDENT}{} {} ({asker})",
            self.colour.text(TextStyle::Heading, "question"),
            question.interaction_id
        ));
        for line in question::lines(question, self.colour) {
            self.lines.push(format!("{INDENT}{INDENT}{line}"));
        }
        let at = question.resolved_at.as_deref().map(times::date_time).unwrap_or_default();
        let by = terminal_text::one_line(question.resolved_by.as_deref().unwrap_or("an unknown person"));
        let reply = terminal_text::one_line(question.reply.as_deref().unwrap_or_default());
        let outcome = match (question.state, question.resolution_mode) {
            (InteractionStateValue::Open, _) => {
                let until = match &question.deadline_at {
                    Some(deadline) => format!("for {} more", times::time_until(deadline)),
                    None => "without a limit".to_owned(),
                };
                let command = question::reply_command(question);
                self.colour.text(
                    TextStyle::Warning,
                    format!("open since {}, {until}: {command}", times::date_time(&question.opened_at)),
                )
            }
            (InteractionStateValue::Answered, Some(ResolutionModeValue::AutoDecideTimeout)) => {
                let reason = question.auto_decide_reason.map_or("no reply", AutoDecideReasonValue::as_str);
                format!("answered by policy ({reason}), not by a person, at {at}: {reply}")
            }
            (InteractionStateValue::Answered, Some(ResolutionModeValue::UserReply) | None) => {
                format!("answered by {by} at {at}: {reply}")
            }
            (InteractionStateValue::Closed, _) => {
                let reason =
                    terminal_text::one_line(question.closed_because.as_deref().unwrap_or("no longer needed"));
                format!("closed without an answer at {at}: {reason}")
            }
        };
        self.lines.push(format!("{INDENT}{INDENT}{outcome}"));
    }

    fn agent(&mut self, agent: &AgentAccount) {
        self.lines.push(String::new());
        self.lines.push(self.colour.text(TextStyle::Heading, "agent journal"));
        let rows: Vec<Vec<TableCell>> =
            agent.rows().iter().map(|(name, value)| label_row(name, value)).collect();
        self.rows(INDENT, &rows);
    }

    fn push_outcome(&mut self, run: &RunView) {
        if let Some(error) = &run.error {
            self.lines.push(String::new());
            self.lines.push(self.colour.text(TextStyle::Error, error_line(error)));
        }
        if let (Some(result), true) = (&run.result, run.status.is_final()) {
            self.lines.push(String::new());
            self.lines.push(self.colour.text(TextStyle::Heading, "result"));
            self.push_text(&result.text);
        }
    }

    fn rows(&mut self, indent: &str, rows: &[Vec<TableCell>]) {
        self.lines
            .extend(table::format_rows(rows, self.colour).into_iter().map(|line| format!("{indent}{line}")));
    }

    fn push_text(&mut self, words: &str) {
        let words = terminal_text::escape_control_chars(words);
        self.lines.extend(words.lines().map(|line| format!("{INDENT}{INDENT}{line}")));
    }
}

fn label_row(name: &str, value: &str) -> Vec<TableCell> {
    vec![
        TextStyle::Heading.cell(terminal_text::one_line(name)),
        TextStyle::Plain.cell(terminal_text::one_line(value)),
    ]
}

/// Formats the settings of the run, one per row.
fn options(options: &RunOptions) -> Vec<Vec<TableCell>> {
    let RunOptions { session_timeout_sec, turn_timeout_sec, model, .. } = options;
    let unanswered = match (options.interactive_require_user_reply, session_timeout_sec) {
        (Some(false), Some(seconds)) => format!("policy answers after {seconds} s"),
        (Some(false), None) => "policy answers at the deadline".to_owned(),
        (Some(true) | None, _) => "only a person answers".to_owned(),
    };
    let on_busy = options.on_busy.map(|on_busy| match on_busy {
        OnBusyValue::Queue => "messages wait for their own turn",
        OnBusyValue::Steer => "messages are added to the running turn",
        OnBusyValue::Supersede => "messages end the running turn",
    });
    let sandbox = options.sandbox.map(|sandbox| match sandbox {
        SandboxValue::ReadOnly => "read-only",
        SandboxValue::WorkspaceWrite => "workspace-write",
        SandboxValue::DangerFullAccess => "danger-full-access",
    });
    let isolation = options.isolation.map(|isolation| match isolation {
        IsolationValue::Auto => "auto",
        IsolationValue::Namespace => "namespace",
        IsolationValue::Landlock => "landlock",
        IsolationValue::Off => "off",
    });
    let limit = turn_timeout_sec.map(|seconds| format!("{seconds} s of work"));
    [
        Some(label_row("questions", &unanswered)),
        on_busy.map(|policy| label_row("on busy", policy)),
        limit.map(|limit| label_row("turn limit", &limit)),
        model.as_deref().map(|model| label_row("model", model)),
        sandbox.map(|sandbox| label_row("sandbox", sandbox)),
        isolation.map(|isolation| label_row("isolation", isolation)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn attempt(attempt: &AttemptView) -> Vec<TableCell> {
    let AttemptView { attempt, pid, started_at, ended_at, exit_code } = attempt;
    let process = pid.map_or_else(|| "no process".to_owned(), |pid| format!("pid {pid}"));
    let began =
        started_at.as_deref().map(|at| format!(", from {}", times::time_of_day(at))).unwrap_or_default();
    let ended = ended_at.as_deref().map(|at| format!(" to {}", times::time_of_day(at))).unwrap_or_default();
    let exit = match (exit_code, ended_at) {
        (Some(code), _) => format!(", exit code {code}"),
        (None, Some(_)) => ", exit code not known".to_owned(),
        (None, None) => String::new(),
    };
    label_row(&format!("attempt {attempt}"), &format!("{process}{began}{ended}{exit}"))
}

fn error_line(error: &RunErrorView) -> String {
    format!("{}: {}", terminal_text::one_line(&error.code), terminal_text::one_line(&error.message))
}
