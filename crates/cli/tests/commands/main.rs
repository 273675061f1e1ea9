//! The command line end to end: the real binary, a real daemon in a home of its own, a real terminal for people.

#[cfg(test)]
mod following;
#[cfg(test)]
mod house;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod output;
#[cfg(test)]
mod person;
#[cfg(test)]
mod questions;
#[cfg(test)]
mod service;
#[cfg(test)]
mod talking;
