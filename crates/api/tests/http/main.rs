//! Tests of the HTTP interface with a real daemon on the memory store, over real sockets.
//!
//! There are no slots, so no engine is started and runs stay in the state that a test puts them in. Tests with engines
//! use the real binary.

mod asking;
mod bounds;
mod client;
mod fixture;
mod guard;
mod listening;
mod refusals;
mod revocation;
mod shapes;
