//! Small mechanisms without product nouns: files, locks, processes, control groups, confinement, peers of sockets,
//! clocks, random ids, program lookup, suggestions.
//!
//! [`beneath`] and [`remove`] are safe for trees that a hostile program can change at any time. A symbolic link is never
//! followed, an open never blocks, and work is bounded in bytes, time, memory and open descriptors.
//!
//! - [`beneath`] opens a directory once. Paths below it are opened, created, read, renamed and deleted relative to that
//!   descriptor.
//! - [`remove`] deletes a directory tree.
//! - [`cgroup`] limits and kills a group of processes together.
//! - [`confine`] hides directories from a process and restricts its writes.
//! - [`mount_table`] finds the places at which a directory is mounted a second time.
//! - [`process`] identifies a process and signals it through a pidfd.
//! - [`peer`] identifies the process at the other end of a Unix socket and its ancestors.
//! - [`stream_socket`] sends and receives without blocking, [`poll`] waits for descriptors, [`tty`] controls the terminal.
//! - [`own_process`] changes the descriptors and limits of this process.
//! - [`private_file`] creates files and directories that only their owner can access.
//! - [`atomic_file`] replaces such a file as a whole.
//! - [`file_lock`] lets one process at a time use something.
//! - [`clock`] reads the kernel's clocks, [`random`] its random numbers.
//! - [`program_lookup`] finds a program in a search path.
//! - [`failpoint`] marks positions at which a crash test can interrupt the program.
//! - [`sse`] parses server-sent events.
//! - [`suggestion`] finds the name that was probably meant, [`config_problem`] reports mistakes in configuration files.
//!
//! The caller knows the meaning of the files, and decides which directory may be deleted.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Abide runs on Linux only (x86_64 and aarch64): it needs /proc, epoll, pidfds and openat2. On Windows, use WSL2."
);

pub mod atomic_file;
pub mod beneath;
pub mod cgroup;
pub mod clock;
pub mod config_problem;
pub mod confine;
pub mod failpoint;
pub mod file_lock;
pub mod mount_table;
pub mod own_process;
pub mod peer;
pub mod poll;
pub mod private_file;
pub mod process;
pub mod program_lookup;
pub mod random;
pub mod remove;
pub mod sse;
pub mod stream_socket;
pub mod suggestion;
pub mod tty;

mod error;

pub use error::OsError;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct OsReadme;
