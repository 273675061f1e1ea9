//! A definition of the native agent whose tools the tests use.

use std::{fs, io, path::Path};

/// Writes an agent definition to `folder`, which is created. `base_url` is the address of the model.
pub fn write_agent(folder: &Path, base_url: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.yaml"), AGENT_CONFIG.replace("BASE_URL", base_url))?;
    fs::write(folder.join("system_prompt.md"), "You are a careful agent.\n")
}

/// `note` appends a line to a file, so that executions can be counted.
const AGENT_CONFIG: &str = r#"
model:
  base_url: "BASE_URL"
  name: loopback
  max_retries: 1
tools:
  - name: note
    description: Writes a line into notes.txt.
    command: [sh, -c, 'echo "$1" >> notes.txt && echo "noted $1"', note]
    parameters:
      - { name: text, type: string, description: The line., inject_as: argument }
  - name: look
    description: Shows notes.txt.
    command: [sh, -c, 'echo NOTES; cat notes.txt; true']
  - name: linger
    description: Never ends by itself.
    command: [sh, -c, 'echo begun; echo begun >> lingering.txt; exec sleep 1000']
  - name: act
    description: Runs a command.
    command: [bash, -c, 'eval "$1"', act]
    parameters:
      - { name: command, type: string, description: The command., inject_as: argument }
  - name: shell
    description: A shell that remembers.
    stateful: true
    command: [bash, -i]
    parameters:
      - { name: command, type: string, description: The command., inject_as: stdin, required: false }
  - name: python
    description: A Python that remembers.
    stateful: true
    command: [python3, -i]
    parameters:
      - { name: code, type: string, description: The code., inject_as: stdin, required: false }
"#;
