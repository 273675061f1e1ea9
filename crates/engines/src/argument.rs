//! Checks values that become arguments of a program, so that none is parsed as an option or as another kind of value.
//!
//! Prompts are never arguments; they are written to standard input.

use abide_domain::engine::EngineSessionHandle;
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

/// The id of a session, if it has the form that its program accepts. `noun` is the name of the id in the refusal.
pub(crate) fn session_id<'a>(
    handle: &'a EngineSessionHandle,
    noun: &str,
    is_id: fn(&str) -> bool,
) -> Result<&'a str, UnsupportedOperation> {
    let id = handle.handle_value.as_str();
    if is_id(id) {
        Ok(id)
    } else {
        Err(UnsupportedOperation::Refused { reason: format!("{id:?} is not a {noun}") })
    }
}

/// Whether a session id that an engine announces can be passed back as an argument. Invalid ids are ignored (A11).
pub(crate) fn is_valid_session_id(id: &str) -> bool {
    is_safe_argument(id) && id.len() <= MAX_ID_BYTES && !id.contains(char::is_control)
}

/// In bytes. The ids of known engines have at most 50.
const MAX_ID_BYTES: usize = 512;

/// Whether a text is a UUID in the usual notation. Programs may take other texts for the number or title of a session,
/// and resume a wrong one.
pub(crate) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.char_indices().all(|(at, character)| match at {
            8 | 13 | 18 | 23 => character == '-',
            _ => character.is_ascii_hexdigit(),
        })
}

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

    #[test]
    fn numbers_titles_and_options_are_no_ids() {
        assert!(is_uuid("01a1e0b7-8feb-7f42-a76c-eeeb075097aa"));
        for other in [
            "",
            "5",
            "latest",
            "--help",
            "01a1e0b7-8feb-7f42-a76c-eeeb075097a",
            "the session of monday, early",
        ] {
            assert!(!is_uuid(other), "{other}");
        }
    }
}
