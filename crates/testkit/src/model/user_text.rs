//! A heuristic for the text that a person wrote: agent programs put their own notes into the same messages.
//!
//! The patterns come from requests of real programs. The recorded request is not changed.

use super::side_request;

/// Returns the part of a text block that a person wrote, if any.
pub(super) fn user_part(block: &str) -> Option<String> {
    let block = without_instructions(block);
    let mut rest = block.trim();
    loop {
        if rest.is_empty()
            || side_request::begins_like_side_request(rest)
            || PROGRAM_OPENINGS.iter().any(|opening| rest.starts_with(opening))
        {
            return None;
        }
        let Some(after) = TAGS.iter().find_map(|tag| after_tag(rest, tag)) else { break };
        rest = after.trim_start();
    }
    // Notes may follow the person's text, which ends where the first of them begins.
    let end =
        TRAILING_TAGS.iter().filter_map(|tag| rest.find(&format!("\n<{tag}>"))).min().unwrap_or(rest.len());
    Some(rest[..end].trim_end().to_owned())
}

/// Removes the instructions that Abide adds to prompts. Programs join several prompts into one message, so the
/// instructions may be anywhere in the text.
fn without_instructions(text: &str) -> String {
    let (open, close) = ("<abide-runtime>", "</abide-runtime>");
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, tagged)) = rest.split_once(open) {
        let Some((_, after)) = tagged.split_once(close) else { break };
        kept.push_str(before);
        rest = after;
    }
    kept + rest
}

/// Returns the text after a note that begins `text`, or `None` if the note is not closed.
fn after_tag<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let inside = text.strip_prefix('<')?.strip_prefix(tag)?;
    if !inside.starts_with(['>', ' ']) {
        return None;
    }
    let closing = format!("</{tag}>");
    Some(inside.find(&closing).map_or("", |at| &inside[at + closing.len()..]))
}

/// Tags of notes that may precede a person's text.
const TAGS: &[&str] = &[
    "environment_context",
    "system-reminder",
    "session_context",
    "user_instructions",
    "permissions instructions",
    "collaboration_mode",
    "skills_instructions",
    "turn_aborted",
    "local-command-caveat",
    "hook_context",
];

/// Tags of notes that follow a person's text.
const TRAILING_TAGS: &[&str] = &["system-reminder", "hook_context"];

/// The first words of texts that no person wrote.
const PROGRAM_OPENINGS: &[&str] = &[
    "# AGENTS.md instructions",
    "This is the Gemini CLI.",
    "This is the Qwen Code.",
    "[Request interrupted by user",
    "The connection dropped mid-response.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_programs_are_not_a_persons() {
        for note in [
            "<environment_context>\n  <cwd>x</cwd>\n</environment_context>",
            "<system-reminder>\nThe date is unknown.\n</system-reminder>\n",
            "<session_context>\nThis is the Gemini CLI.\n</session_context>",
            "# AGENTS.md instructions for somewhere\n\n<INSTRUCTIONS>\nbe brief\n</INSTRUCTIONS>",
            "<turn_aborted>\nThe person stopped it.\n</turn_aborted>",
            "   \n",
        ] {
            assert_eq!(user_part(note), None, "{note}");
        }
    }

    #[test]
    fn text_around_notes_is_kept() {
        let wrapped = "<system-reminder>a</system-reminder>\n<system-reminder>b</system-reminder>\nhello";
        assert_eq!(user_part(wrapped), Some("hello".to_owned()));
        assert_eq!(user_part("hello\n\n<system-reminder>c</system-reminder>"), Some("hello".to_owned()));
    }

    #[test]
    fn our_own_instructions_are_not_user_text() {
        let joined =
            "dig\n\n<abide-runtime>ask so</abide-runtime>\n\nrest\n\n<abide-runtime>or so</abide-runtime>";
        assert_eq!(user_part(joined), Some("dig\n\n\n\nrest".to_owned()));
    }

    #[test]
    fn a_person_may_write_about_tags() {
        let text = "why is <environment_context> empty?";
        assert_eq!(user_part(text), Some(text.to_owned()));
        assert_eq!(user_part("<b>bold</b>"), Some("<b>bold</b>".to_owned()));
    }
}
