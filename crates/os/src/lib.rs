//! Linux mechanisms without product nouns: paths below a directory, removal of directory trees, processes by identity,
//! control groups, confinement, peers of sockets.
//!
//! The modules for files are safe for trees that a hostile program can change at any time. A symbolic link is never
//! followed, an open never blocks, and work is bounded in bytes, time, memory and open descriptors.
//!
//! - [`beneath`] opens a directory once. Paths below it are opened, created, read, renamed and deleted relative to that
//!   descriptor.
//! - [`remove`] deletes a directory tree.
//! - [`cgroup`] limits and kills a group of processes together.
//! - [`confine`] hides a directory from a process and restricts its writes.
//! - [`process`] identifies a process and signals it through a pidfd.
//! - [`clock`] measures time limits.
//! - [`peer`] identifies the process at the other end of a Unix socket and its ancestors.
//!
//! The caller knows the meaning of the files, and decides which directory may be deleted.

pub mod beneath;
pub mod cgroup;
pub mod clock;
pub mod confine;
pub mod peer;
pub mod process;
pub mod remove;

mod error;

pub use error::OsError;
