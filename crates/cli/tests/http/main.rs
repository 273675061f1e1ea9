//! The HTTP interface of the real binary: whole stories with the scripted engine, terminals, and restarts.

mod daemon;
mod story;
mod terminals;
