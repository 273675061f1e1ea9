//! The ports implemented on this machine.
//!
//! - [`processes`]: processes on keepers, and keepers that outlive a process.
//! - [`keeper_command`]: the hidden subcommands that run keepers.
//! - [`workspace`]: workspaces of runs and copies of skills.
//! - [`retention`]: deletion of the files of finished runs, on [`created_dirs`], the proof that a directory is Abide's.
//! - [`isolation`] and [`control_groups`]: which mechanisms confine and limit a program.
//! - [`crash_record`] and [`content_files`]: files of the crash guard and of long questions.
//! - [`home_folders`], [`former_folders`] and [`home_permissions`]: the folders of the home, their names in earlier
//!   versions, and their modes.
//! - [`store_folders`]: the folders of a database outside the home.
//! - [`clock`], [`disk_space`] and [`machine`]: time, free space, cores and memory.
//!
//! Arguments, settings and the environment are read in `cli`; this crate gets plain values. It knows no HTTP and no
//! database.

pub mod clock;
pub mod content_files;
pub mod control_groups;
pub mod crash_record;
pub mod created_dirs;
pub mod disk_space;
pub mod former_folders;
pub mod home_folders;
pub mod home_permissions;
pub mod isolation;
pub mod keeper_command;
pub mod machine;
pub mod processes;
pub mod retention;
pub mod store_folders;
pub mod workspace;

mod error;

pub use error::HostError;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct HostReadme;
