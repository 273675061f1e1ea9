//! The committed pin of one engine: its package, the exact version, and the lock file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The manifest and the lock file, and the package and version that they specify.
#[derive(Debug)]
pub(super) struct PinnedPackage {
    pub(super) package: String,
    pub(super) version: String,
    pub(super) manifest: String,
    pub(super) lock: String,
}

impl PinnedPackage {
    pub(super) fn load(dir: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
        };
        Self::parse(read("package.json")?, read("package-lock.json")?)
    }

    fn parse(manifest: String, lock: String) -> Result<Self> {
        let parsed: PackageManifest = serde_json::from_str(&manifest).context("the list is not readable")?;
        let mut dependencies = parsed.dependencies.into_iter();
        let (Some((package, version)), None) = (dependencies.next(), dependencies.next()) else {
            bail!("a list names exactly one package");
        };
        // The result of a range would depend on the date.
        if !version.starts_with(|c: char| c.is_ascii_digit()) {
            bail!("{package} is wanted at {version}, which is not one version");
        }
        Ok(Self { package, version, manifest, lock })
    }
}

#[derive(Deserialize)]
struct PackageManifest {
    dependencies: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::PinnedPackage;
    use crate::engines::list::{ENGINES, NODE};

    fn read_pin(manifest: &str) -> Result<(String, String), String> {
        match PinnedPackage::parse(manifest.to_owned(), String::new()) {
            Ok(pin) => Ok((pin.package, pin.version)),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_list_asks_for_one_package_at_one_version() {
        let pin = read_pin(r#"{"dependencies": {"@a/b": "1.2.3"}}"#);
        assert_eq!(pin, Ok(("@a/b".to_owned(), "1.2.3".to_owned())));
    }

    #[test]
    fn a_range_is_not_a_version() {
        let error = read_pin(r#"{"dependencies": {"a": "^1.2.3"}}"#);
        assert_eq!(error, Err("a is wanted at ^1.2.3, which is not one version".to_owned()));
    }

    #[test]
    fn two_packages_in_one_list_are_refused() {
        let error = read_pin(r#"{"dependencies": {"a": "1.0.0", "b": "1.0.0"}}"#);
        assert_eq!(error, Err("a list names exactly one package".to_owned()));
    }

    #[test]
    fn every_engine_is_locked_by_content_and_not_by_place() {
        for engine in ENGINES.iter().chain([&NODE]) {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("engines").join(engine.name);
            let pin = PinnedPackage::load(&dir).unwrap();
            let lock: Value = serde_json::from_str(&pin.lock).unwrap();
            let packages = lock["packages"].as_object().unwrap();
            let locked = &packages[&format!("node_modules/{}", pin.package)]["version"];
            assert_eq!(locked, &Value::from(pin.version), "{}", engine.name);
            for (path, package) in packages.iter().filter(|(path, _)| !path.is_empty()) {
                assert!(package["integrity"].is_string(), "{} {path}", engine.name);
                assert!(package["resolved"].is_null(), "{} {path}", engine.name);
            }
        }
    }
}
