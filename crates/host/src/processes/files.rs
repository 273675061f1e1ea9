//! Identifies the files that a command would run, to detect changes. Nothing is executed.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use abide_ports::{engine::EngineInstallation, processes::FileIdentity};

/// Returns the identities of the program found along `path` and of every file named by the arguments, because many
/// programs are scripts passed to an interpreter. `None` if the program is not found.
pub(super) fn identities(command: &EngineInstallation, path: &str) -> Option<Vec<FileIdentity>> {
    let (program, arguments) = command.command.split_first()?;
    let mut files = vec![identity(&find_program(program, path)?)?];
    let named = arguments.iter().chain(&command.args).filter(|argument| argument.starts_with('/'));
    files.extend(named.filter_map(|argument| identity(Path::new(argument))));
    Some(files)
}

/// Finds a program. A relative path yields `None`, because its target depends on the working directory.
fn find_program(program: &str, path: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return program.starts_with('/').then(|| PathBuf::from(program));
    }
    let runs = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    path.split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| Path::new(folder).join(program))
        .find(runs)
}

/// Returns the identity of the file at a path; links are followed.
fn identity(path: &Path) -> Option<FileIdentity> {
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(FileIdentity {
        path: path.to_owned(),
        inode: (file.dev(), file.ino()),
        size: file.size(),
        modified: (file.mtime(), file.mtime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &Path, contents: &str) {
        fs::write(path, contents).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_program_that_was_replaced_written_to_or_hidden_by_another_is_another() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("first"), home.path().join("second"));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&second).unwrap();
        let path = format!("{}:{}", first.display(), second.display());
        let command = EngineInstallation::for_program("agent");
        let seen = || identities(&command, &path);
        assert_eq!(seen(), None);
        program(&second.join("agent"), "one");
        let one = seen();
        assert!(one.is_some());
        assert_eq!(seen(), one, "looking changes nothing");
        program(&second.join("agent"), "one!");
        let written = seen();
        assert_ne!(written, one);
        program(&second.join("new"), "one!");
        fs::rename(second.join("new"), second.join("agent")).unwrap();
        let replaced = seen();
        assert_ne!(replaced, written);
        program(&first.join("agent"), "one!");
        assert_ne!(seen(), replaced, "an earlier folder hides it");
    }

    #[test]
    fn the_script_that_an_interpreter_is_given_belongs_to_the_program() {
        let home = tempfile::tempdir().unwrap();
        let script = home.path().join("agent.js");
        fs::write(&script, "one").unwrap();
        let command = vec!["/bin/sh".to_owned(), script.to_string_lossy().into_owned()];
        let command = EngineInstallation { command, ..EngineInstallation::default() };
        let one = identities(&command, "");
        fs::write(&script, "another").unwrap();
        assert_ne!(identities(&command, ""), one);
    }
}
