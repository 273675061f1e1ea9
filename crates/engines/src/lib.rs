//! One module per agent program: its start, and the interpretation of its output.
//!
//! Each adapter has the same files: `mod.rs` (abilities of the engine), `launch.rs` (command line and environment),
//! `reader.rs` (interpretation of output, and input), `messages.rs` (format of its lines). This crate starts no programs,
//! opens no files and reads no clock.
//!
//! Reading order: [`registry`], the questions that end a turn ([`asking`]), the frame of line-based readers (`lines`,
//! `kind`, `head`, `tongue`), then any adapter.

pub mod asking;
pub mod registry;

mod abide_agent;
mod acp;
mod argument;
mod claude;
mod codex;
mod covered;
mod failing;
mod gemini;
mod head;
mod ids;
mod iflow;
mod kind;
mod lines;
mod node;
mod opencode;
mod parrot;
mod qwen;
mod tongue;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct EnginesReadme;
