//! The native think-act-observe agent: its journal, its tools, its model client.
//!
//! Its whole memory is a folder (`.abide`): a journal of what was said, wanted and seen, from which every message to
//! the model is built. The home keeps a record of that folder, and what must not lie where tools can write. One thread,
//! nothing asynchronous on the outside. Tools are processes under keepers, as everywhere, so whatever they hold survives
//! this program.
//!
//! Not here: arguments, the environment and the terminal, which are the cli's; and the daemon, for which this is an
//! engine like any other.

pub mod definition;
pub mod model;
pub mod session;
pub mod tool;

pub mod context;
pub mod event;
pub mod failpoint;
pub mod hands;
pub mod human;
pub mod intake;
pub mod journal;
pub mod memory;
pub mod outcome;
pub mod provenance;
pub mod run;
pub mod state;
pub mod story;

mod bench;
mod clock;
mod lock;
mod private;
mod recovery;
mod secrets;
