//! Finds a run or question by a full id, a unique prefix or suffix, or `last`.

use abide_wire::{interaction::InteractionView, run::RunView};

use crate::{client::DaemonClient, error::CliError};

/// Number of recent runs that are searched; older ones are found only by their full id.
const MAX_SEARCHED_RUNS: usize = 10_000;
/// Number of digits of an id after its prefix.
const ID_DIGITS: usize = 26;
/// Maximum number of matches listed in an error message.
const MAX_LISTED_MATCHES: usize = 3;

pub(super) fn run(client: &DaemonClient, word: &str) -> anyhow::Result<RunView> {
    if word == "last" {
        let newest = client.runs(None, 1)?.pop();
        return newest
            .ok_or_else(|| no_run("there are no runs yet; `abide run ENGINE PROMPT` starts one").into());
    }
    if is_full_id(word, "run_") {
        return client.run(word).map_err(|error| match error.downcast_ref::<CliError>() {
            Some(cli_error) if cli_error.code == "RUN_NOT_FOUND" => {
                no_run(format!("there is no run {word}; `abide ls` lists the runs there are")).into()
            }
            Some(_) | None => error,
        });
    }
    let runs = client.runs(None, MAX_SEARCHED_RUNS)?;
    let matching: Vec<RunView> = runs.into_iter().filter(|run| matches(&run.run_id, word)).collect();
    let ids: Vec<&str> = matching.iter().map(|run| run.run_id.as_str()).collect();
    require_unique(word, "run", "abide ls", &ids)?;
    matching.into_iter().next().ok_or_else(|| no_run("the run does not exist").into())
}

/// Finds an open question. A full id also matches a question that is not open.
pub(super) fn interaction(client: &DaemonClient, word: &str) -> anyhow::Result<Option<FoundInteraction>> {
    if !word.starts_with("int_") {
        return Ok(None);
    }
    let open = client.inbox(MAX_SEARCHED_RUNS)?;
    let matching: Vec<InteractionView> =
        open.into_iter().filter(|it| matches(&it.interaction_id, word)).collect();
    if matching.is_empty() && is_full_id(word, "int_") {
        return Ok(Some(FoundInteraction::NotOpen(word.to_owned())));
    }
    let ids: Vec<&str> = matching.iter().map(|it| it.interaction_id.as_str()).collect();
    require_unique(word, "open question", "abide inbox", &ids)?;
    Ok(matching.into_iter().next().map(|it| FoundInteraction::Open(Box::new(it))))
}

pub(super) enum FoundInteraction {
    Open(Box<InteractionView>),
    /// The question is closed or does not exist; the daemon reports which.
    NotOpen(String),
}

fn no_run(detail: impl Into<String>) -> CliError {
    CliError::failure("RUN_NOT_FOUND", detail)
}

fn is_full_id(word: &str, prefix: &str) -> bool {
    word.strip_prefix(prefix).is_some_and(|digits| {
        digits.len() == ID_DIGITS
            && digits.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    })
}

fn matches(id: &str, word: &str) -> bool {
    let digits = id.split_once('_').map_or(id, |(_, digits)| digits);
    !word.is_empty() && (id.starts_with(word) || digits.starts_with(word) || id.ends_with(word))
}

fn require_unique(word: &str, kind: &str, list: &str, ids: &[&str]) -> Result<(), CliError> {
    match ids {
        [_] => Ok(()),
        [] => {
            let code = if kind == "run" { "RUN_NOT_FOUND" } else { "INTERACTION_NOT_FOUND" };
            Err(CliError::failure(
                code,
                format!("no {kind} begins or ends with {word:?}; `{list}` lists them"),
            ))
        }
        several => {
            let named = several.iter().take(MAX_LISTED_MATCHES).copied().collect::<Vec<_>>().join(", ");
            let more = if several.len() > MAX_LISTED_MATCHES { ", …" } else { "" };
            Err(CliError::failure(
                "AMBIGUOUS",
                format!("{} {kind}s match {word:?}: {named}{more}; give more of the id", several.len()),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_id_must_be_unique() {
        let ids = ["run_01abc", "run_01xyz"];
        let matching = |word: &str| ids.into_iter().filter(|id| matches(id, word)).collect::<Vec<_>>();
        assert_eq!(matching("xyz"), ["run_01xyz"]);
        assert_eq!(matching("01a"), ["run_01abc"]);
        assert_eq!(matching("run_01x"), ["run_01xyz"]);
        assert_eq!(matching(""), Vec::<&str>::new());
        let several = require_unique("01", "run", "abide ls", &matching("01")).unwrap_err();
        assert_eq!(several.detail, "2 runs match \"01\": run_01abc, run_01xyz; give more of the id");
        let none = require_unique("q", "run", "abide ls", &matching("q")).unwrap_err();
        assert_eq!(none.detail, "no run begins or ends with \"q\"; `abide ls` lists them");
    }

    #[test]
    fn only_full_ids_are_treated_as_ids() {
        assert!(is_full_id("run_01kaxm3s3fe6bbd6gkzpfh2v1t", "run_"));
        assert!(!is_full_id("run_01kaxm3s3fe6bbd6gkzpfh2v1t/../x", "run_"));
        assert!(!is_full_id("01kaxm3s3fe6bbd6gkzpfh2v1t", "run_"));
    }
}
