//! Programs that run on Node and leave with `process.exit`.
//!
//! Node writes to a pipe in the background. What has not been written when the program calls `process.exit` is lost: of
//! an answer of 450 kB, a reader that is a moment behind gets 64 KiB or 128 KiB, the exit code is 0, and the last line,
//! which tells the result, is missing (Node 22.23). A file that is loaded before the program makes
//! its output streams block instead. It takes itself out of the environment again, so that programs which the agent
//! starts are not concerned.

use abide_ports::engine::PrivateFile;

/// The file's name in the run's private folder.
const FILE: &str = "node-output.cjs";

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

/// What a Node program is started with so that all of its output arrives.
#[derive(Debug)]
pub(crate) struct WholeOutput {
    pub(crate) file: PrivateFile,
    /// For `ProcessSpec::appended_env`.
    pub(crate) env: (String, String),
}

impl WholeOutput {
    /// With the file in this folder.
    pub(crate) fn new(private: &str) -> Self {
        // Node's own rule for values with blanks: double quotes, and backslashes before quotes and backslashes.
        let path = format!("{private}/{FILE}").replace('\\', "\\\\").replace('"', "\\\"");
        let option = format!("--require \"{path}\"");
        let contents = format!("const own = {};\n{SCRIPT}", serde_json::Value::from(option.as_str()));
        let file = PrivateFile { path: FILE.to_owned(), contents };
        Self { file, env: ("NODE_OPTIONS".to_owned(), option) }
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
