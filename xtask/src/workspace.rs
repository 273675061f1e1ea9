//! The workspace as `cargo metadata` describes it: which crates there are and what each depends on directly.
//!
//! Nothing is resolved or fetched; what the lock file holds is `cargo deny`'s concern.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::shell::Shell;

pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) members: Vec<Member>,
}

/// One crate of ours.
pub(crate) struct Member {
    /// The package's name, `abide-domain`.
    pub(crate) package: String,
    /// Its folder, relative to the root: `crates/domain`.
    pub(crate) dir: String,
    pub(crate) dependencies: Vec<Dependency>,
}

pub(crate) struct Dependency {
    pub(crate) package: String,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Build,
    Dev,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
        let json = Shell::new("cargo")
            .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
            .dir(root)
            .read()?;
        Self::parse(&json)
    }

    pub(crate) fn parse(json: &str) -> Result<Self> {
        let metadata: Metadata = serde_json::from_str(json).context("could not read `cargo metadata`")?;
        let root = metadata.workspace_root;
        let members = metadata.packages.into_iter().map(|package| package.into_member(&root)).collect();
        Ok(Self { root, target: metadata.target_directory, members })
    }

    pub(crate) fn member(&self, package: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.package == package)
    }
}

impl Member {
    /// The name by which the arrows table knows it: its folder's, `domain`.
    pub(crate) fn short(&self) -> &str {
        self.dir.rsplit('/').next().unwrap_or(&self.dir)
    }
}

#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
    packages: Vec<PackageJson>,
}

#[derive(Deserialize)]
struct PackageJson {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<DependencyJson>,
}

#[derive(Deserialize)]
struct DependencyJson {
    name: String,
    kind: Option<String>,
}

impl PackageJson {
    fn into_member(self, root: &Path) -> Member {
        let dir = self.manifest_path.parent().unwrap_or(root);
        let dir = dir.strip_prefix(root).unwrap_or(dir).to_string_lossy().into_owned();
        let dependencies = self.dependencies.into_iter().map(DependencyJson::into_dependency).collect();
        Member { package: self.name, dir, dependencies }
    }
}

impl DependencyJson {
    fn into_dependency(self) -> Dependency {
        let kind = match self.kind.as_deref() {
            Some("dev") => Kind::Dev,
            Some("build") => Kind::Build,
            Some(_) | None => Kind::Normal,
        };
        Dependency { package: self.name, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Workspace};

    #[test]
    fn members_are_known_by_package_and_by_folder() {
        let workspace = Workspace::parse(
            r#"{"workspace_root": "/repo", "target_directory": "/repo/target", "packages": [
                {"name": "abide-domain", "manifest_path": "/repo/crates/domain/Cargo.toml", "dependencies": [
                    {"name": "serde", "kind": null}, {"name": "serde_json", "kind": "dev"}]}]}"#,
        )
        .unwrap();
        let domain = workspace.member("abide-domain").unwrap();
        assert_eq!((domain.dir.as_str(), domain.short()), ("crates/domain", "domain"));
        assert_eq!(domain.dependencies.iter().map(|d| d.kind).collect::<Vec<_>>(), [Kind::Normal, Kind::Dev]);
        assert!(workspace.member("abide").is_none());
    }
}
