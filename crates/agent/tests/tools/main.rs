//! Tools with real keepers and real programs: files on disk, observations, and remaining processes.

mod fixture;
mod former;
mod once;
mod sessions;
mod survival;
mod talking;
