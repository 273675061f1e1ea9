//! The contract of workspaces: what a run finds in its directory before its engine is started there (D3).
//!
//! A run's skill is copied to where its engine looks for skills, and only the copy is ever changed. Where the copy lies
//! follows from the settings alone, so that a restarted daemon orders what an earlier one did. How files are copied, and
//! what is added to them, is not known here.

use abide_domain::settings::ExecutionMode;

/// Those who prepare workspaces. Calls block for as long as the system takes.
pub trait Workspaces: Send + Sync {
    /// Sees to it that the workspace holds what the run needs. Doing it again does no harm, after a crash in the middle
    /// too, and a copy that was made for this run stays as it is.
    fn prepare(&self, preparation: &WorkspacePreparation<'_>) -> Result<(), WorkspaceError>;
}

/// What a run needs in its workspace.
#[derive(Clone, Copy, Debug)]
pub struct WorkspacePreparation<'a> {
    /// The run.
    pub run: &'a str,
    /// The directory that every turn of it works in.
    pub workspace: &'a str,
    /// Whether and how the run may ask.
    pub mode: ExecutionMode,
    /// Its skill, if it was given one.
    pub skill: Option<&'a RunSkill>,
}

/// A skill for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSkill {
    /// The folder as the owner named it; a relative one is meant from the workspace.
    pub source: String,
    /// Where the run's copy lies, from the workspace.
    pub copy: String,
}

impl RunSkill {
    /// The skill in this folder, for an engine that looks for skills there. None if the folder has no name that a copy
    /// could have.
    pub fn new(source: &str, skills_folder: &str) -> Option<Self> {
        let name = source.trim_end_matches('/').rsplit('/').next().filter(|name| is_fit(name))?;
        Some(Self { source: source.to_owned(), copy: format!("{skills_folder}/{name}") })
    }

    /// The name of the folder, which is the skill's.
    pub fn name(&self) -> &str {
        self.copy.rsplit('/').next().unwrap_or(&self.copy)
    }
}

/// Engines overlook hidden folders, the name is put into a prompt, and the agent uses it in commands.
fn is_fit(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['.', '-'])
        && !name.contains(|char: char| char.is_control() || char == '`')
}

/// Why a run cannot work there. The text says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkspaceError(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_named_after_the_folder_that_the_owner_named() {
        for source in ["/skills/review", "/skills/review//", "review", "../elsewhere/review"] {
            let skill = RunSkill::new(source, ".agents/skills").unwrap();
            assert_eq!(skill.copy, ".agents/skills/review");
            assert_eq!(skill.name(), "review");
            assert_eq!(skill.source, source);
        }
        assert_eq!(RunSkill::new("/a/my own skill", "s").unwrap().copy, "s/my own skill");
    }

    #[test]
    fn a_folder_without_a_usable_name_is_no_skill() {
        for source in
            ["", "/", "//", ".", "..", "/a/..", "/a/.hidden", "-r", "/a/--force/", "/a/two\nlines", "/a/b`c"]
        {
            assert_eq!(RunSkill::new(source, ".agents/skills"), None, "{source:?}");
        }
    }
}
