//! Questions that end a turn (SPEC part D): what the engine is told about asking, and how its question is recognised.
//!
//! Questions inside a turn come by the engine's own protocol and are read by its adapter.
//!
//! Reading order: what is asked for ([`patch`]), who is told ([`instructed()`]),
//! how an answer is read ([`recognise()`]), and its helpers: `fences` finds
//! blocks in Markdown, `tags` finds them in angle brackets, `lenient` reads JSON as models write it, `envelope` makes a
//! question of it.

mod envelope;
mod fences;
mod instructed;
mod lenient;
pub mod patch;
mod recognise;
mod tags;

pub use instructed::instructed;
pub use recognise::{RecognizedAnswer, recognise};
