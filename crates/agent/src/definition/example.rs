//! The example that `abide agent init` writes: a working definition, and the schema for editors.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::{
    file,
    load::{CONFIG_FILE, SYSTEM_PROMPT_FILE},
};

/// Referenced by the comment in the first line of the example, which editors evaluate.
const SCHEMA_FILE: &str = "config.schema.json";

/// The files that [`init`] wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitializedFiles {
    pub files: Vec<PathBuf>,
}

/// The reason why [`init`] stopped. Files that it wrote before the error remain.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("{} already exists, and nothing is overwritten; name another folder", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Writes the example into a folder, which is created if it is missing. Existing files are never overwritten: if one of
/// the files exists, none is written.
pub fn init(folder: &Path) -> Result<InitializedFiles, InitError> {
    let schema = schema_text();
    let files = [
        (CONFIG_FILE, include_str!("example/config.yaml")),
        (SYSTEM_PROMPT_FILE, include_str!("example/system_prompt.md")),
        (SCHEMA_FILE, schema.as_str()),
    ];
    if let Some((name, _)) = files.iter().find(|(name, _)| folder.join(name).symlink_metadata().is_ok()) {
        return Err(InitError::Exists(folder.join(name)));
    }
    std::fs::create_dir_all(folder).map_err(|source| InitError::Write { path: folder.to_owned(), source })?;
    let mut written = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        // `create_new`, because another process may have created the file after the check above.
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
