//! The shell tools of agent programs and their argument formats, recognised by the offered tools.

use serde_json::{Value, json};

use super::received::ReceivedRequest;

/// Returns the call that runs `command`, if the request offers a known shell tool.
pub(super) fn shell(request: &ReceivedRequest, command: &str) -> Option<(String, Value)> {
    let (tool, spelling) = SHELLS.iter().find(|(tool, _)| request.offers(tool))?;
    let args = match spelling {
        ShellCallFormat::Cmd => json!({ "cmd": command }),
        ShellCallFormat::Command => json!({ "command": command, "description": "as scripted" }),
        ShellCallFormat::CommandOnly => json!({ "command": command }),
        ShellCallFormat::Argv => json!({ "command": ["bash", "-lc", command] }),
        ShellCallFormat::Foreground => {
            json!({ "command": command, "description": "as scripted", "is_background": false })
        }
    };
    Some(((*tool).to_owned(), args))
}

#[derive(Debug, Clone, Copy)]
enum ShellCallFormat {
    Cmd,
    Command,
    CommandOnly,
    Argv,
    Foreground,
}

/// The known shell tools. If a program offers two, the newer one is first.
const SHELLS: &[(&str, ShellCallFormat)] = &[
    ("exec_command", ShellCallFormat::Cmd),
    ("shell_command", ShellCallFormat::CommandOnly),
    ("Bash", ShellCallFormat::Command),
    ("bash", ShellCallFormat::Command),
    ("run_shell_command", ShellCallFormat::Foreground),
    ("shell", ShellCallFormat::Argv),
];
