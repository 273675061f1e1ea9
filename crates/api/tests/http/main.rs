//! The HTTP interface over a real daemon on the memory store, through real sockets.
//!
//! Runs stay where the tests put them: there are no slots, so no engine is ever started. Whole stories with engines are
//! tested with the real binary.

mod asking;
mod bounds;
mod client;
mod guard;
mod house;
mod listening;
mod refusals;
mod shapes;
