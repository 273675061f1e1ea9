//! Holds one child process, its output and its exit code, and outlives the daemon.
//!
//! A keeper is this same binary started again with a hidden subcommand: one thread, one `epoll`, no async runtime.
//! It is the only place where processes are started. What the child means (a shell, an engine) is not known here:
//! texts for a shell come in as data, see [`protocol::ShellTemplates`].
//!
//! Reading order: what is said ([`protocol`]), how it travels ([`link`]), who is who ([`identity`]), where things lie
//! ([`place`]), what its child's descendants are held together by ([`group`]), how a keeper is started and found again ([`launch`], and [`former`] where agents can write), what is done about processes that lost
//! theirs ([`leftovers`]), and then the keeper itself (`holder`).

pub mod background;
pub mod confine;
pub mod former;
pub mod group;
pub mod identity;
pub mod launch;
pub mod leftovers;
pub mod link;
pub mod place;
pub mod protocol;
pub mod spin;
pub mod spool;

mod child;
mod clock;
mod error;
mod holder;
mod job;
mod lane;
mod path_bytes;
mod procs;
mod reading;
mod script;
mod ticker;

pub use error::KeeperError;
pub use holder::main;
