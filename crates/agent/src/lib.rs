//! The native think-act-observe agent: its journal, its tools, its model client.
//!
//! Its whole memory is a folder (`.abide`): a journal of what was said, wanted and seen, from which every message to
//! the model is built. One thread, nothing asynchronous on the outside. Tools are processes under keepers, as
//! everywhere, so whatever they hold survives this program.
//!
//! Not here: arguments, the environment and the terminal, which are the cli's; and the daemon, for which this is an
//! engine like any other.

pub mod definition;
pub mod event;
pub mod failpoint;
pub mod journal;
pub mod model;
pub mod session;
pub mod tool;

mod clock;
