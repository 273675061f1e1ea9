//! The lines of the parrot in both directions. Their effects are documented in the program, `abide __parrot`.

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
    /// `command`, `file_change`, `tool` or `permission`, if the gate has a subject.
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

/// A line to the parrot.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ParrotCommand<'a> {
    Prompt { text: &'a str },
    Answer { gate: &'a str, text: &'a str, approved: bool },
    Steer { text: &'a str },
    Interrupt,
}

impl ParrotCommand<'_> {
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("strings always become JSON");
        line.push(b'\n');
        line
    }
}
