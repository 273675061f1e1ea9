//! Questions that end a turn (SPEC part D): what the engine is told about asking, and how its question is recognised.
//!
//! Questions inside a turn come by the engine's own protocol and are read by its adapter.

mod recognise;

pub use recognise::{Heard, recognise};
