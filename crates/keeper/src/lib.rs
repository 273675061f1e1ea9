//! Supervises one child process, keeps its output and exit code, and outlives the daemon.
//!
//! A keeper is this same binary started again with a hidden subcommand: one thread, one `epoll`, no async runtime. No
//! other crate starts processes. The keeper does not know whether the child is a shell or an engine. The script texts
//! for a shell are data, see [`protocol::ShellTemplates`].
//!
//! Reading order: the messages ([`protocol`]), their transport ([`framed_socket`]), process identities ([`identity`]), the files
//! ([`keeper_dir`]), the control groups ([`control_group`]), starting ([`launch`]), the client ([`client`], and
//! [`former_keepers`] for directories where agents can write), cleanup after killed keepers ([`orphans`]), and then the
//! keeper itself (`supervisor`).

pub mod adaptive_spin;
pub mod client;
pub mod confine;
pub mod control_group;
pub mod detached;
pub mod former_keepers;
pub mod framed_socket;
pub mod identity;
pub mod keeper_dir;
pub mod launch;
pub mod orphans;
pub mod periodic_timer;
pub mod protocol;
pub mod spool;

mod blocked_reads;
mod child;
mod clock;
mod error;
mod output_pipes;
mod path_bytes;
mod pipe_proxy;
mod process_tree;
mod shell_driver;
mod shell_job;
mod supervisor;

pub use error::KeeperError;
pub use supervisor::main;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct KeeperReadme;
