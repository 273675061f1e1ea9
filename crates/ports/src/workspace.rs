//! The contract of workspaces: the preparation of a run's directory before its engine starts there (D3).
//!
//! A run's skill is copied to the folder in which its engine looks for skills, and only the copy is modified. The place
//! of the copy depends on the settings only, so a restarted daemon uses the same place. Copying and the changes to the
//! copy are not defined here.

use abide_domain::settings::ExecutionMode;

/// Prepares the workspaces of runs. Calls block.
pub trait Workspaces: Send + Sync {
    /// Refuses a directory in which no run may work, before the run is created. `workspace` is a resolved path. Nothing
    /// is created or changed.
    fn check(&self, workspace: &str) -> Result<(), WorkspaceError>;

    /// Refuses a folder that cannot be the skill of a run, before the run is created. `skill` is absolute or relative to
    /// the workspace. A folder that does not exist yet is not refused here.
    fn check_skill(&self, workspace: &str, skill: &str) -> Result<(), WorkspaceError>;

    /// Ensures that the workspace contains the files that the run needs. It is idempotent, also after a crash during an
    /// earlier call. An existing copy for this run is not changed.
    fn prepare(&self, preparation: &WorkspacePreparation<'_>) -> Result<(), WorkspaceError>;
}

/// The requirements of a run on its workspace.
#[derive(Clone, Copy, Debug)]
pub struct WorkspacePreparation<'a> {
    pub run: &'a str,
    /// The working directory of all turns of the run: an absolute path without symbolic links, which must not be
    /// followed if they were put there since.
    pub workspace: &'a str,
    /// Whether and how the run may ask questions.
    pub mode: ExecutionMode,
    pub skill: Option<&'a RunSkill>,
}

/// A skill for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSkill {
    /// The folder as the owner named it, absolute or relative to the workspace.
    pub source: String,
    /// The folder of the run's copy, relative to the workspace.
    pub copy_path: String,
}

impl RunSkill {
    /// The skill in the folder `source`, for an engine that looks for skills in `skills_folder`. None if the name of
    /// the folder cannot be used for a copy.
    pub fn new(source: &str, skills_folder: &str) -> Option<Self> {
        let name =
            source.trim_end_matches('/').rsplit('/').next().filter(|name| is_valid_skill_name(name))?;
        Some(Self { source: source.to_owned(), copy_path: format!("{skills_folder}/{name}") })
    }

    /// The name of the folder, which is the name of the skill.
    pub fn name(&self) -> &str {
        self.copy_path.rsplit('/').next().unwrap_or(&self.copy_path)
    }
}

/// Whether a name can be used for a skill. Hidden folders are ignored by engines. The name also appears in prompts and
/// in commands of the agent.
fn is_valid_skill_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['.', '-'])
        && !name.contains(|char: char| char.is_control() || char == '`')
}

/// The reason why a run cannot use its workspace, with the remedy.
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
            assert_eq!(skill.copy_path, ".agents/skills/review");
            assert_eq!(skill.name(), "review");
            assert_eq!(skill.source, source);
        }
        assert_eq!(RunSkill::new("/a/my own skill", "s").unwrap().copy_path, "s/my own skill");
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
