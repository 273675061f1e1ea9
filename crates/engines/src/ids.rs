//! How the ids look that engines take for sessions. What an id stands for is known to its engine alone.

/// Whether a text is a UUID in its usual writing. Programs that are given something else may take it for the number
/// or the title of a session, and go on with another one.
pub(crate) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.char_indices().all(|(at, character)| match at {
            8 | 13 | 18 | 23 => character == '-',
            _ => character.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

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
