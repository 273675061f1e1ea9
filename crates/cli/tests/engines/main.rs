//! Real agent programs, end to end: real processes under real keepers, the daemon, and a model on
//! the loopback interface instead of a paid one.
//!
//! `cargo xtask test` installs the programs and passes their paths. A missing program is reported as not verified; with
//! `ABIDE_REQUIRE_ENGINES=1` it is a failure.

mod busy;
mod dressing;
mod harness;
mod parrots;
mod programs;
mod record;
mod skills;
mod special;
mod stories;
mod texts;

#[path = "../support/in_process.rs"]
mod in_process;
#[path = "../support/program_ports.rs"]
mod program_ports;

/// Defines one test per scenario for an engine.
macro_rules! engine {
    ($module:ident, $name:literal) => {
        mod $module {
            use crate::{busy, stories, texts};

            #[test]
            fn a_new_process_gets_the_answer_and_can_ask_again() {
                stories::a_new_process_gets_the_answer_and_can_ask_again($name);
                crate::record::record_pass($name, "a_new_process_gets_the_answer_and_can_ask_again");
            }

            #[test]
            fn a_lost_session_is_detected_and_reported() {
                stories::a_lost_session_is_detected_and_reported($name);
                crate::record::record_pass($name, "a_lost_session_is_detected_and_reported");
            }

            #[test]
            fn exit_code_0_without_a_result_is_a_failure() {
                stories::exit_code_0_without_a_result_is_a_failure($name);
                crate::record::record_pass($name, "exit_code_0_without_a_result_is_a_failure");
            }

            #[test]
            fn a_wrong_key_is_reported_as_auth_required() {
                stories::a_wrong_key_is_reported_as_auth_required($name);
                crate::record::record_pass($name, "a_wrong_key_is_reported_as_auth_required");
            }

            #[test]
            fn a_missing_program_and_a_missing_workspace_are_distinguished() {
                stories::a_missing_program_and_a_missing_workspace_are_distinguished($name);
                crate::record::record_pass(
                    $name,
                    "a_missing_program_and_a_missing_workspace_are_distinguished",
                );
            }

            #[test]
            fn a_chat_continues_after_its_engine_was_killed_in_a_turn() {
                stories::a_chat_continues_after_its_engine_was_killed_in_a_turn($name);
                crate::record::record_pass($name, "a_chat_continues_after_its_engine_was_killed_in_a_turn");
            }

            #[test]
            fn leftover_processes_of_a_tool_are_ended() {
                stories::leftover_processes_of_a_tool_are_ended($name);
                crate::record::record_pass($name, "leftover_processes_of_a_tool_are_ended");
            }

            #[test]
            fn twenty_turns_in_a_row_keep_the_whole_history() {
                stories::twenty_turns_in_a_row_keep_the_whole_history($name);
                crate::record::record_pass($name, "twenty_turns_in_a_row_keep_the_whole_history");
            }

            #[test]
            fn an_interrupted_turn_is_over_and_the_chat_continues() {
                busy::an_interrupted_turn_is_over_and_the_chat_continues($name);
                crate::record::record_pass($name, "an_interrupted_turn_is_over_and_the_chat_continues");
            }

            #[test]
            fn e9_a_newer_message_supersedes_the_turn_at_work() {
                busy::e9_a_newer_message_supersedes_the_turn_at_work($name);
                crate::record::record_pass($name, "e9_a_newer_message_supersedes_the_turn_at_work");
            }

            #[test]
            fn e6_an_answer_during_the_end_of_a_process_leaves_no_attempt_without_its_end() {
                busy::e6_an_answer_during_the_end_of_a_process_leaves_no_attempt_without_its_end($name);
                crate::record::record_pass(
                    $name,
                    "e6_an_answer_during_the_end_of_a_process_leaves_no_attempt_without_its_end",
                );
            }

            #[test]
            fn a_very_long_answer_arrives_whole() {
                texts::a_very_long_answer_arrives_whole($name);
                crate::record::record_pass($name, "a_very_long_answer_arrives_whole");
            }

            #[test]
            fn a_prompt_that_looks_like_an_option_is_a_prompt() {
                texts::a_prompt_that_looks_like_an_option_is_a_prompt($name);
                crate::record::record_pass($name, "a_prompt_that_looks_like_an_option_is_a_prompt");
            }

            #[test]
            fn a_model_that_repeats_itself_is_no_success_without_an_answer() {
                texts::a_model_that_repeats_itself_is_no_success_without_an_answer($name);
                crate::record::record_pass(
                    $name,
                    "a_model_that_repeats_itself_is_no_success_without_an_answer",
                );
            }
        }
    };
}

engine!(codex, "codex");
engine!(claude, "claude");
engine!(gemini, "gemini");
engine!(qwen, "qwen");
engine!(opencode, "opencode");
engine!(iflow, "iflow");
engine!(native, "native");
engine!(codex_acp, "codex-acp");
engine!(claude_acp, "claude-acp");
engine!(gemini_acp, "gemini-acp");
