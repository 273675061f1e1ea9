//! Questions that end a turn (SPEC part D): the instructions for the engine, and the recognition of its questions.
//!
//! Questions inside a turn use the engine's own protocol and are read by its adapter.
//!
//! Reading order: [`patch`] (the instructions), [`with_instructions()`] (their insertion), [`recognise()`] (the recognition),
//! and its helpers: `fences` finds blocks in Markdown, `tags` finds them in angle brackets, `lenient_json` parses JSON as
//! models write it, and `envelope` converts it to a question.

mod envelope;
mod fences;
mod lenient_json;
pub mod patch;
mod recognise;
mod tags;
mod with_instructions;

pub use recognise::{RecognizedAnswer, recognise};
pub use with_instructions::with_instructions;
