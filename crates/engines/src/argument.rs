//! Checks values that become arguments of a program, so that none is parsed as an option.
//!
//! Prompts are never arguments; they are written to standard input. Each adapter checks the form of its session ids.

use abide_ports::engine::{LaunchContext, UnsupportedOperation};

/// The model of a launch, if it is valid after `--model`. The HTTP interface refuses others when a run is created; this
/// check covers runs that are older than that.
pub(crate) fn model<'a>(context: &LaunchContext<'a>) -> Result<Option<&'a str>, UnsupportedOperation> {
    match context.model {
        Some(model) if !is_safe_argument(model) => Err(UnsupportedOperation::Refused {
            reason: format!("{model:?} is not the name of a model: it would be read as an option"),
        }),
        model => Ok(model),
    }
}

/// Whether a session id that an engine announces can be passed back as an argument. Invalid ids are ignored (A11).
pub(crate) fn is_valid_session_id(id: &str) -> bool {
    is_safe_argument(id) && id.len() <= MAX_ID_BYTES && !id.contains(char::is_control)
}

/// In bytes. The ids of known engines have at most 50.
const MAX_ID_BYTES: usize = 512;

fn is_safe_argument(value: &str) -> bool {
    !value.is_empty() && !value.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_nothing_at_all_are_no_values() {
        for value in ["", "-", "-r", "--yolo", "--model=x"] {
            assert!(!is_safe_argument(value) && !is_valid_session_id(value), "{value}");
        }
        assert!(
            is_safe_argument("gpt-5.5")
                && is_valid_session_id("ses_4f2a")
                && is_valid_session_id("_eeeb-01a1")
        );
        assert!(!is_valid_session_id("two\nlines") && !is_valid_session_id(&"x".repeat(513)));
    }
}
