//! The real daemon from outside: runs that wait, are answered, and survive the daemon's end (A8) (A10) (A12) (D5).
//!
//! Each test restarts the daemon during the wait: once after a kill, once after an orderly exit that leaves processes
//! to the keepers.

mod approvals;
mod attempts;
mod bounds;
mod damage;
mod deaths;
mod gates;
mod guard;
mod harness;
mod keepers;
mod output;
mod policies;
mod postgres;
mod pressure;
mod probes;
mod shutdown;
mod stops;
mod waits;
