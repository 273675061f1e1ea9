//! What runs, turns, attempts, interactions and deliveries are, and how each event changes them.
//!
//! Pure values: no clock, no file, no randomness, no async. They do not even compile here.
#![no_std]

extern crate alloc;
