//! Values from outside that become arguments of a program: none of them may be read as an option.
//!
//! Prompts are never arguments; they go in by standard input. Session ids have their own form in each adapter.

use abide_ports::engine::{LaunchContext, UnsupportedOperation};

/// The model of an order, if it can stand alone behind `--model`. The HTTP interface refuses others when the run is
/// created; this is for runs that were created before it did.
pub(crate) fn model<'a>(order: &LaunchContext<'a>) -> Result<Option<&'a str>, UnsupportedOperation> {
    match order.model {
        Some(model) if !is_plain(model) => Err(UnsupportedOperation::Refused {
            reason: format!("{model:?} is not the name of a model: it would be read as an option"),
        }),
        model => Ok(model),
    }
}

/// Whether a session id that an engine announces can be given back to it as an argument. One that cannot is as good as
/// none (A11).
pub(crate) fn is_session(id: &str) -> bool {
    is_plain(id) && id.len() <= LONGEST_ID && !id.contains(char::is_control)
}

/// In bytes. No engine was seen with more than 50.
const LONGEST_ID: usize = 512;

fn is_plain(value: &str) -> bool {
    !value.is_empty() && !value.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_nothing_at_all_are_no_values() {
        for value in ["", "-", "-r", "--yolo", "--model=x"] {
            assert!(!is_plain(value) && !is_session(value), "{value}");
        }
        assert!(is_plain("gpt-5.5") && is_session("ses_4f2a") && is_session("_eeeb-01a1"));
        assert!(!is_session("two\nlines") && !is_session(&"x".repeat(513)));
    }
}
