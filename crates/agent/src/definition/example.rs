//! The example that `abide agent init` writes: a definition that works, with the schema for editors beside it.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::{
    file,
    load::{CONFIG, SYSTEM_PROMPT},
};

/// The schema, for editors that know the comment in the first line of the example.
const SCHEMA: &str = "config.schema.json";

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitializedFiles {
    pub files: Vec<PathBuf>,
}

/// Why nothing was, or not everything.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("{} is there already, and nothing is overwritten; name another folder", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Writes the example into a folder, which is made if it is not there. Nothing is overwritten: if any of the files is
/// there, none is written.
pub fn init(folder: &Path) -> Result<InitializedFiles, InitError> {
    let schema = schema_text();
    let files = [
        (CONFIG, include_str!("example/config.yaml")),
        (SYSTEM_PROMPT, include_str!("example/system_prompt.md")),
        (SCHEMA, schema.as_str()),
    ];
    if let Some((name, _)) = files.iter().find(|(name, _)| folder.join(name).symlink_metadata().is_ok()) {
        return Err(InitError::Exists(folder.join(name)));
    }
    std::fs::create_dir_all(folder).map_err(|source| InitError::Write { path: folder.to_owned(), source })?;
    let mut written = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        // Made only if it is new: somebody may have been quicker.
        let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
        let done = file.and_then(|mut file| file.write_all(text.as_bytes()));
        match done {
            Ok(()) => written.push(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(InitError::Exists(path)),
            Err(source) => return Err(InitError::Write { path, source }),
        }
    }
    Ok(InitializedFiles { files: written })
}

/// The JSON Schema of `config.yaml`, as it is checked in at `docs/agent.schema.json`.
pub fn schema_text() -> String {
    let mut text = serde_json::to_string_pretty(&file::schema()).unwrap_or_default();
    text.push('\n');
    text
}
