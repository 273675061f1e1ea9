//! Session ids that Gemini's own cleaner spares.
//!
//! Gemini keeps a session in a file named by the minute and by the first 8 characters of its id. Going on with a session
//! in a later minute leaves a second file of that name which holds no message. Every start of Gemini in the same
//! project takes such a file for a broken session and deletes *all* files with the same 8 characters, the real session
//! among them (0.61.0, unless `general.sessionRetention.enabled` is false).
//!
//! That setting cannot be laid over the owner's: the only stronger file is the administrator's, another one may be named
//! by `GEMINI_CLI_SYSTEM_SETTINGS_PATH` but is then read instead of it, and only if it and all folders above it belong
//! to root. So we would lose the administrator's rules and mostly gain nothing. It would not help against the owner's
//! own use of Gemini in the same project either.
//!
//! But the cleaner finds files that belong together only by 8 *letters or digits*. Of an id with an underscore among its
//! first 8 characters it deletes the empty file alone. So that is what our ids look like.
//!
//! Two ways to lose a session remain. The cleaner also deletes what was not used for `sessionRetention.maxAge`, 30
//! days unless the owner says otherwise. And it takes a session for broken that has not got its first message yet, if
//! another Gemini starts in the same project in that moment.

use crate::ids::is_uuid;

/// The session id that is made of a new UUID.
///
/// The end of the UUID comes first: it is random in all versions, whereas the beginning may be the time, and two
/// sessions of one minute whose ids begin alike would be written to the same file.
pub(super) fn spared(fresh: &str) -> String {
    let (beginning, end) = fresh.rsplit_once('-').unwrap_or(("", fresh));
    format!("_{end}-{beginning}")
}

/// Whether Gemini can only take it for a session's id, never for an index in a list (A5), for `latest` or an option.
pub(super) fn is_id(text: &str) -> bool {
    let of_ours = |text: &str| {
        let (end, beginning) = text.split_once('-')?;
        Some(is_uuid(&format!("{beginning}-{end}")))
    };
    is_uuid(text) || text.strip_prefix('_').and_then(of_ours).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cleaner_finds_no_group_of_files_by_our_ids() {
        let id = spared("01a1e0b7-8feb-7f42-a76c-eeeb075097aa");
        assert_eq!(id, "_eeeb075097aa-01a1e0b7-8feb-7f42-a76c");
        let short: String = id.chars().take(8).collect();
        assert!(!short.chars().all(|character| character.is_ascii_alphanumeric()));
        assert!(is_id(&id));
    }

    #[test]
    fn sessions_of_the_same_moment_get_different_files() {
        let of = |id: &str| spared(id).chars().take(8).collect::<String>();
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
