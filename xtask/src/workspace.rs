//! The workspace according to `cargo metadata`: the crates and their direct dependencies.
//!
//! Nothing is resolved or fetched; `cargo deny` checks the lock file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::shell::EchoedCommand;

pub(crate) struct CargoWorkspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) members: Vec<WorkspaceMember>,
}

/// A crate of this workspace.
pub(crate) struct WorkspaceMember {
    /// The name of the package, such as `abide-domain`.
    pub(crate) package: String,
    /// The folder relative to the root, such as `crates/domain`.
    pub(crate) dir: String,
    pub(crate) dependencies: Vec<CrateDependency>,
}

pub(crate) struct CrateDependency {
    pub(crate) package: String,
    pub(crate) kind: DependencyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DependencyKind {
    Normal,
    Build,
    Dev,
}

impl CargoWorkspace {
    pub(crate) fn load() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
        let json = EchoedCommand::new("cargo")
            .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
            .dir(root)
            .read()?;
        Self::parse(&json)
    }

    pub(crate) fn parse(json: &str) -> Result<Self> {
        let metadata: CargoMetadata =
            serde_json::from_str(json).context("could not read `cargo metadata`")?;
        let root = metadata.workspace_root;
        let members = metadata.packages.into_iter().map(|package| package.into_member(&root)).collect();
        Ok(Self { root, target: metadata.target_directory, members })
    }

    pub(crate) fn member(&self, package: &str) -> Option<&WorkspaceMember> {
        self.members.iter().find(|member| member.package == package)
    }
}

impl WorkspaceMember {
    /// Returns the name in the dependency table, which is that of the folder, such as `domain`.
    pub(crate) fn short(&self) -> &str {
        self.dir.rsplit('/').next().unwrap_or(&self.dir)
    }
}

#[derive(Deserialize)]
struct CargoMetadata {
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
    fn into_member(self, root: &Path) -> WorkspaceMember {
        let dir = self.manifest_path.parent().unwrap_or(root);
        let dir = dir.strip_prefix(root).unwrap_or(dir).to_string_lossy().into_owned();
        let dependencies = self.dependencies.into_iter().map(DependencyJson::into_dependency).collect();
        WorkspaceMember { package: self.name, dir, dependencies }
    }
}

impl DependencyJson {
    fn into_dependency(self) -> CrateDependency {
        let kind = match self.kind.as_deref() {
            Some("dev") => DependencyKind::Dev,
            Some("build") => DependencyKind::Build,
            Some(_) | None => DependencyKind::Normal,
        };
        CrateDependency { package: self.name, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::{CargoWorkspace, DependencyKind};

    #[test]
    fn members_are_known_by_package_and_by_folder() {
        let workspace = CargoWorkspace::parse(
            r#"{"workspace_root": "/repo", "target_directory": "/repo/target", "packages": [
                {"name": "abide-domain", "manifest_path": "/repo/crates/domain/Cargo.toml", "dependencies": [
                    {"name": "serde", "kind": null}, {"name": "serde_json", "kind": "dev"}]}]}"#,
        )
        .unwrap();
        let domain = workspace.member("abide-domain").unwrap();
        assert_eq!((domain.dir.as_str(), domain.short()), ("crates/domain", "domain"));
        assert_eq!(
            domain.dependencies.iter().map(|d| d.kind).collect::<Vec<_>>(),
            [DependencyKind::Normal, DependencyKind::Dev]
        );
        assert!(workspace.member("abide").is_none());
    }
}
