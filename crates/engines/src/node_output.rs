//! Makes the output of Node programs complete that exit with `process.exit`.
//!
//! Node writes to pipes asynchronously, and `process.exit` discards pending output. If the reader is slightly slow,
//! only 64 KiB or 128 KiB of an answer of 450 kB arrive, the exit code is 0, and the last line with the result is
//! missing (Node 22.23). A preloaded script makes the output streams block instead. It removes itself from the
//! environment, so that programs which the agent starts are not affected.

use abide_ports::engine::{PrivateFile, ProcessSpec};

/// Name of the script in the run's private folder.
const SCRIPT_FILE: &str = "node-output.cjs";

/// A launcher that starts the real program as a child (`cli-entry.js`, or npm and npx) passes the option on to it.
const SCRIPT: &str = "\
// Written by Abide: makes the output streams block, so that nothing is lost when the program exits.
const isLauncher = () => {
  try { return /\\/(cli-entry|npm-cli|npx-cli)\\.js$/.test(require('node:fs').realpathSync(process.argv[1])); }
  catch { return false; }
};
if (!isLauncher()) {
  const rest = (process.env.NODE_OPTIONS ?? '').replace(own, '').trim();
  if (rest) process.env.NODE_OPTIONS = rest;
  else delete process.env.NODE_OPTIONS;
}
for (const name of ['stdout', 'stderr']) {
  try { process[name]._handle?.setBlocking?.(true); } catch {}
}
";

/// The script and the environment for a Node program whose output must be complete.
#[derive(Debug)]
pub(crate) struct WholeOutput {
    file: PrivateFile,
    /// For [`ProcessSpec::appended_env`].
    env: (String, String),
}

impl WholeOutput {
    /// `private` is the folder for the script.
    pub(crate) fn new(private: &str) -> Self {
        // Node's syntax for values with spaces: double quotes, and a backslash before quotes and backslashes.
        let path = format!("{private}/{SCRIPT_FILE}").replace('\\', "\\\\").replace('"', "\\\"");
        let option = format!("--require \"{path}\"");
        let contents = format!("const own = {};\n{SCRIPT}", serde_json::Value::from(option.as_str()));
        let file = PrivateFile { relative_path: SCRIPT_FILE.to_owned(), contents };
        Self { file, env: ("NODE_OPTIONS".to_owned(), option) }
    }

    pub(crate) fn add_to(self, spec: &mut ProcessSpec) {
        spec.files.push(self.file);
        spec.appended_env.push(self.env);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_blanks_and_quotes_is_one_option() {
        let whole = WholeOutput::new("/private/a b/\"c\"");
        assert_eq!(whole.env.1, r#"--require "/private/a b/\"c\"/node-output.cjs""#);
        assert!(
            whole
                .file
                .contents
                .contains(r#"const own = "--require \"/private/a b/\\\"c\\\"/node-output.cjs\"";"#)
        );
    }
}
