//! Session ids that survive Gemini's own cleanup.
//!
//! Gemini stores a session in a file that is named by the minute and by the first 8 characters of the session id.
//! Resuming a session in a later minute creates a second file of that name without messages. Each start of Gemini in
//! the same project takes such a file for a broken session and deletes *all* files with the same 8 characters,
//! including the real session (0.61.0, unless `general.sessionRetention.enabled` is false).
//!
//! That setting cannot be added to the owner's settings. The only file with precedence is the administrator's.
//! `GEMINI_CLI_SYSTEM_SETTINGS_PATH` names a different file, which then replaces the administrator's rules. It is read
//! only if it and all of its parent folders belong to root. The setting would not help against the owner's own use of
//! Gemini in the same project either.
//!
//! However, the cleanup finds related files only by 8 *letters or digits*. If an id has an underscore among its first 8
//! characters, only the empty file is deleted. Our ids have this form.
//!
//! A session can still be lost in two ways. The cleanup deletes sessions that were not used for
//! `sessionRetention.maxAge`, 30 days by default. And it takes a session without its first message for broken, if
//! another Gemini starts in the same project at that moment.

use crate::argument::is_uuid;

/// Derives a session id from a new UUID.
///
/// The end of the UUID comes first, because it is random in all versions, whereas the beginning may be the time. Two
/// sessions of one minute whose ids begin alike would share a file.
pub(super) fn cleanup_safe_id(uuid: &str) -> String {
    let (beginning, end) = uuid.rsplit_once('-').unwrap_or(("", uuid));
    format!("_{end}-{beginning}")
}

/// Whether Gemini can only parse the text as a session id, and not as an index in a list (A5), as `latest` or as an
/// option.
pub(super) fn is_id(text: &str) -> bool {
    let is_reversed_uuid = |text: &str| {
        let (end, beginning) = text.split_once('-')?;
        Some(is_uuid(&format!("{beginning}-{end}")))
    };
    is_uuid(text) || text.strip_prefix('_').and_then(is_reversed_uuid).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cleaner_finds_no_group_of_files_by_our_ids() {
        let id = cleanup_safe_id("01a1e0b7-8feb-7f42-a76c-eeeb075097aa");
        assert_eq!(id, "_eeeb075097aa-01a1e0b7-8feb-7f42-a76c");
        let short: String = id.chars().take(8).collect();
        assert!(!short.chars().all(|character| character.is_ascii_alphanumeric()));
        assert!(is_id(&id));
    }

    #[test]
    fn sessions_of_the_same_moment_get_different_files() {
        let of = |id: &str| cleanup_safe_id(id).chars().take(8).collect::<String>();
        assert_ne!(of("01a1e0b7-8feb-7f42-a76c-eeeb075097aa"), of("01a1e0b7-8feb-7f42-a76c-1eeb075097aa"));
    }

    #[test]
    fn an_index_is_no_id() {
        assert!(is_id("01a1e0b7-8feb-7f42-a76c-eeeb075097aa"));
        for other in ["1", "latest", "_", "_1", "-r", "_eeeb075097aa", ""] {
            assert!(!is_id(other), "{other}");
        }
    }
}
