//! The formats of session ids that engines accept. The meaning of an id is known only to its engine.

/// Whether a text is a UUID in the usual notation. Programs may take other texts for the number or title of a session,
/// and resume a wrong one.
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
