//! What an operator does with the real binary: look at figures and logs, verify, back up.

#![expect(clippy::unwrap_used, reason = "all of this is a test")]

mod copies;
mod figures;
mod place;
mod secrets;
mod traces;
