//! Tools on real keepers and real programs: what a call leaves on disk, what the model sees, what is left running.

mod bench;
mod former;
mod once;
mod sessions;
mod survival;
mod talking;
