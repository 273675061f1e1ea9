//! The real daemon from outside: runs that wait, are answered, and survive its end (A8) (A10) (A12) (D5).
//!
//! Each story is told over a restart in the middle of the wait: once after a kill, once after an orderly end that leaves
//! everything to the keepers.

mod approvals;
mod attempts;
mod bounds;
mod damage;
mod deaths;
mod gates;
mod guard;
mod keepers;
mod output;
mod policies;
mod postgres;
mod pressure;
mod probes;
mod shutdown;
mod stage;
mod stops;
mod waits;
