//! Finds an executable file as `execvp` does: by path, or by name in the directories of a search path.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The absolute path of a program. `name` is a path if it contains a slash; otherwise the directories of `search_path`
/// (as in `PATH`) are searched in order. None if there is no executable file.
pub fn find(name: &str, search_path: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return std::path::absolute(name).ok().filter(|path| is_executable(path));
    }
    std::env::split_paths(search_path)
        .map(|directory| directory.join(name))
        .find(|path| is_executable(path))
        .and_then(|path| std::path::absolute(path).ok())
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_executable_file_of_the_name_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        for (directory, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("tool"), "").unwrap();
            fs::set_permissions(directory.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let search_path = format!("{}:{}", first.display(), second.display());
        assert_eq!(find("tool", &search_path), Some(second.join("tool")));
        assert_eq!(find("other", &search_path), None);
        assert_eq!(find(&first.join("tool").to_string_lossy(), &search_path), None);
        assert_eq!(find("first", &folder.path().to_string_lossy()), None, "a directory is no program");
    }
}
