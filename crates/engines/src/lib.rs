//! One module per agent program: how to start it and what its bytes mean.
//!
//! Every adapter has the same shape: `mod.rs` says what the engine can do, `launch.rs` how it is started, `reader.rs`
//! what its bytes mean and how it is answered, `native.rs` how its own lines look. Nothing here runs a program, opens
//! a file or looks at a clock.
//!
//! Reading order: [`registry`], the questions that end a turn ([`asking`]), the frame that all readers of lines share
//! (`lines`, `kind`, `head`, `tongue`), then any one adapter.

pub mod asking;
pub mod registry;

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
mod native;
mod node;
mod opencode;
mod parrot;
mod qwen;
mod tongue;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct EnginesReadme;
