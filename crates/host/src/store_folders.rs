//! The folders of an SQLite database outside the home. They are hidden from agents like the home: with the database
//! they hold its log and its witness, and SQLite follows a journal that another program puts there.
//!
//! The daemon records them in the home, because its settings are not passed to the native agent.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use abide_os::atomic_file::{self, Durability};

/// The record in the home: a JSON array of paths.
const RECORD_FILE: &str = "store-folders.json";

/// Folders that every program needs.
const SHARED_FOLDERS: [&str; 2] = ["/tmp", "/var/tmp"];

/// Returns the folders of a database that are outside the home, without links. If the database is a link, these are the
/// folders of the link and of its target.
pub fn of_database(home: &Path, database: &Path) -> Vec<PathBuf> {
    let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
    let target = fs::canonicalize(database).ok();
    let parents = [Some(database), target.as_deref()].into_iter().flatten().filter_map(Path::parent);
    let folders = parents.filter_map(|folder| fs::canonicalize(folder).ok());
    let mut outside: Vec<PathBuf> = folders.filter(|folder| !folder.starts_with(&home)).collect();
    outside.dedup();
    outside
}

/// Records the folders in the home.
pub fn record(home: &Path, folders: &[PathBuf]) -> io::Result<()> {
    let path = home.join(RECORD_FILE);
    if folders.is_empty() && !path.exists() {
        return Ok(());
    }
    atomic_file::replace(&path, &serde_json::to_vec(folders)?, Durability::PowerFailure)
}

/// Returns the recorded folders; none if there is no record.
pub fn recorded(home: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read(home.join(RECORD_FILE)) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(error) => Err(error),
    }
}

/// Returns why a folder cannot be hidden; `None` if it can. A folder with other contents that programs need cannot.
pub(crate) fn obstacle(home: &Path, folder: &Path) -> Option<String> {
    let needed = [home].into_iter().chain(SHARED_FOLDERS.map(Path::new));
    let contained = needed.into_iter().find(|needed| needed.starts_with(folder))?;
    Some(format!(
        "the database is in {}, which cannot be hidden because {} is in it; move the database to a folder of its own",
        folder.display(),
        contained.display()
    ))
}

/// Returns why no agent may work in this directory; `None` if one may.
pub fn refusal(home: &Path, folders: &[PathBuf], directory: &Path) -> Option<String> {
    let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
    let resolved = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let is_refused = |folder: &&PathBuf| match obstacle(&home, folder) {
        // The workspaces of runs may be below it.
        Some(_) => is_same(folder, &resolved),
        None => resolved.ancestors().any(|path| is_same(folder, path)),
    };
    folders.iter().find(is_refused).map(|folder| {
        format!(
            "{} is in the folder of Abide's database, {}, which agents must not see; use another directory, or move the \
             database to a folder of its own",
            directory.display(),
            folder.display()
        )
    })
}

/// Returns whether a directory contains one of these folders.
pub(crate) fn contains(folders: &[PathBuf], directory: &Path) -> bool {
    folders.iter().any(|folder| folder.ancestors().skip(1).any(|parent| is_same(parent, directory)))
}

/// Compares directories by device and inode.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_outside_the_home_are_found_and_recorded() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for folder in ["home/sub", "other", "linked"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("other/x.db"), "").unwrap();
        symlink(at("other/x.db"), at("linked/x.db")).unwrap();
        let home = at("home");
        assert_eq!(of_database(&home, &home.join("abide.db")), [""; 0].map(PathBuf::from));
        assert_eq!(of_database(&home, &home.join("sub/abide.db")), [""; 0].map(PathBuf::from));
        assert_eq!(of_database(&home, &at("other/new.db")), [at("other")]);
        let both = of_database(&home, &at("linked/x.db"));
        assert_eq!(both, [at("linked"), at("other")]);
        assert_eq!(recorded(&home).unwrap(), [""; 0].map(PathBuf::from));
        record(&home, &both).unwrap();
        assert_eq!(recorded(&home).unwrap(), both);
        record(&home, &[]).unwrap();
        assert_eq!(recorded(&home).unwrap(), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn a_directory_above_the_folder_of_the_database_contains_it() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("skill/db")).unwrap();
        fs::create_dir_all(at("other")).unwrap();
        symlink(at("skill"), at("link")).unwrap();
        for above in ["", "skill", "link"] {
            assert!(contains(&[at("skill/db")], &at(above)), "{above}");
        }
        for other in ["skill/db", "other", "missing"] {
            assert!(!contains(&[at("skill/db")], &at(other)), "{other}");
        }
    }

    #[test]
    fn no_agent_works_in_the_folder_of_the_database() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for folder in ["home", "data/sub", "work"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        symlink(at("data"), at("work/link")).unwrap();
        let refused = |folder: &str, name: &str| refusal(&at("home"), &[at(folder)], &at(name)).is_some();
        for name in ["data", "data/sub", "work/link/sub", "work/../data"] {
            assert!(refused("data", name), "{name}");
        }
        for name in ["work", "", "home"] {
            assert!(!refused("data", name), "{name}");
        }
        // The home is in the folder of the database.
        assert!(refused("", "") && !refused("", "work"));
        assert!(obstacle(&at("home"), place.path()).unwrap().contains("home"));
        assert!(obstacle(&at("home"), Path::new("/")).is_some());
        assert_eq!(obstacle(&at("home"), &at("data")), None);
    }
}
