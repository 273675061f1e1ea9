//! How the parrot's lines look, both ways. What they mean to it is told in its own program, `abide __parrot`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// `session`, `withdrawn`
#[derive(Debug, Deserialize)]
pub(super) struct ParrotIdLine<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
}

/// `text`, `output`, `progress`, `result`
#[derive(Debug, Deserialize)]
pub(super) struct ParrotTextLine<'a> {
    #[serde(borrow)]
    pub(super) text: Cow<'a, str>,
}

/// `gate`
#[derive(Debug, Deserialize)]
pub(super) struct ParrotGateLine<'a> {
    #[serde(borrow)]
    pub(super) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) prompt: Cow<'a, str>,
    /// `command`, `file_change`, `tool` or `permission`, if it tells what it would do.
    #[serde(borrow, default)]
    pub(super) kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) command: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) cwd: Option<Cow<'a, str>>,
}

/// `failed`
#[derive(Debug, Deserialize)]
pub(super) struct ParrotFailureLine<'a> {
    #[serde(borrow)]
    pub(super) message: Cow<'a, str>,
}

/// What it is told.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ParrotCommand<'a> {
    Prompt { text: &'a str },
    Answer { gate: &'a str, text: &'a str, approved: bool },
    Steer { text: &'a str },
    Interrupt,
}

impl ParrotCommand<'_> {
    /// The line that says so.
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("strings always become JSON");
        line.push(b'\n');
        line
    }
}
