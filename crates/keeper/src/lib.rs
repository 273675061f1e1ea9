//! Supervises one child process, keeps its output and exit code, and outlives the daemon.
//!
//! A keeper is this same binary started again with a hidden subcommand: one thread, one `epoll`, no async runtime. No
//! other crate starts processes. The keeper does not know whether the child is a shell or an engine. The script texts
//! for a shell are data, see [`protocol::ShellTemplates`].
//!
//! Reading order: the messages ([`protocol`]), their transport ([`link`]), process identities ([`identity`]), the files
//! ([`place`]), the control groups ([`group`]), starting and reconnecting ([`launch`], and [`former`] for directories
//! where agents can write), cleanup after killed keepers ([`leftovers`]), and then the keeper itself (`holder`).

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
mod pipe_proxy;
mod procs;
mod reading;
mod script;
mod ticker;

pub use error::KeeperError;
pub use holder::main;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct KeeperReadme;
