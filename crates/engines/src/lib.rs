//! One module per agent program: its start, and the interpretation of its output.
//!
//! Each adapter has the same files: `mod.rs` (description of the program), `launch.rs` (command line and environment),
//! `reader.rs` (interpretation of output, and input), `messages.rs` (format of its lines). This crate starts no programs,
//! opens no files and reads no clock.
//!
//! Reading order: [`registry`], the questions that end a turn ([`asking`]), the description of a program
//! (`command_line`, `launch_builder`), the frame of line-based readers (`lines`, `line_type`, `json_head`,
//! `line_protocol`), the frame of programs with one turn per process (`one_shot`), then any adapter.

pub mod asking;
pub mod catalogue;
pub mod registry;

mod abide_agent;
mod acp;
mod argument;
mod claude;
mod codex;
mod command_line;
mod failure;
mod gemini;
mod iflow;
mod json_head;
mod launch_builder;
mod line_protocol;
mod line_type;
mod lines;
mod node_output;
mod one_shot;
mod opencode;
mod parrot;
mod qwen;
mod request_fields;
#[cfg(test)]
mod test_context;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct EnginesReadme;
