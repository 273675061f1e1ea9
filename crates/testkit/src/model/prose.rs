//! Which text a person wrote, as well as can be told: agent programs put their own notes into the same messages.
//!
//! A judgement by the looks of a text, made from what real programs were seen to send. Nothing is removed from what was
//! heard.

use super::errand;

/// The part of a piece of text that a person wrote, if any.
pub(super) fn written(block: &str) -> Option<String> {
    let block = without_instructions(block);
    let mut rest = block.trim();
    loop {
        if rest.is_empty()
            || errand::is_order(rest)
            || OPENINGS.iter().any(|opening| rest.starts_with(opening))
        {
            return None;
        }
        let Some(after) = TAGS.iter().find_map(|tag| after_tag(rest, tag)) else { break };
        rest = after.trim_start();
    }
    // Notes at the end of what the person wrote: the text ends where the first of them begins.
    let end = TRAILING.iter().filter_map(|tag| rest.find(&format!("\n<{tag}>"))).min().unwrap_or(rest.len());
    Some(rest[..end].trim_end().to_owned())
}

/// The text without what we ourselves tell engines about their run. Programs join several prompts into one message, so
/// it may stand anywhere.
fn without_instructions(text: &str) -> String {
    let (open, close) = ("<abide-runtime>", "</abide-runtime>");
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, told)) = rest.split_once(open) {
        let Some((_, after)) = told.split_once(close) else { break };
        kept.push_str(before);
        rest = after;
    }
    kept + rest
}

/// What follows a note that opens `text`, or nothing when it never closes.
fn after_tag<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let inside = text.strip_prefix('<')?.strip_prefix(tag)?;
    if !inside.starts_with(['>', ' ']) {
        return None;
    }
    let closing = format!("</{tag}>");
    Some(inside.find(&closing).map_or("", |at| &inside[at + closing.len()..]))
}

/// Notes that are wrapped in a tag; a person's text may follow.
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

/// Notes that are put behind a person's text.
const TRAILING: &[&str] = &["system-reminder", "hook_context"];

/// Whole texts that are no person's, known by how they begin.
const OPENINGS: &[&str] = &[
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
            assert_eq!(written(note), None, "{note}");
        }
    }

    #[test]
    fn text_around_notes_is_kept() {
        let wrapped = "<system-reminder>a</system-reminder>\n<system-reminder>b</system-reminder>\nhello";
        assert_eq!(written(wrapped), Some("hello".to_owned()));
        assert_eq!(written("hello\n\n<system-reminder>c</system-reminder>"), Some("hello".to_owned()));
    }

    #[test]
    fn what_we_tell_engines_is_not_a_persons() {
        let joined =
            "dig\n\n<abide-runtime>ask so</abide-runtime>\n\nrest\n\n<abide-runtime>or so</abide-runtime>";
        assert_eq!(written(joined), Some("dig\n\n\n\nrest".to_owned()));
    }

    #[test]
    fn a_person_may_write_about_tags() {
        let text = "why is <environment_context> empty?";
        assert_eq!(written(text), Some(text.to_owned()));
        assert_eq!(written("<b>bold</b>"), Some("<b>bold</b>".to_owned()));
    }
}
