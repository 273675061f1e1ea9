//! How each agent program wants its shell to be called, told from the tools that it offers.

use serde_json::{Value, json};

use super::heard::Heard;

/// The call that runs `command`, if the request offers a shell of a known kind.
pub(super) fn shell(heard: &Heard, command: &str) -> Option<(String, Value)> {
    let (tool, spelling) = SHELLS.iter().find(|(tool, _)| heard.offers(tool))?;
    let args = match spelling {
        Spelling::Cmd => json!({ "cmd": command }),
        Spelling::Command => json!({ "command": command, "description": "as scripted" }),
        Spelling::Bare => json!({ "command": command }),
        Spelling::Argv => json!({ "command": ["bash", "-lc", command] }),
        Spelling::Foreground => {
            json!({ "command": command, "description": "as scripted", "is_background": false })
        }
    };
    Some(((*tool).to_owned(), args))
}

#[derive(Debug, Clone, Copy)]
enum Spelling {
    Cmd,
    Command,
    Bare,
    Argv,
    Foreground,
}

/// The shells of the programs that were looked at, newest tool first where a program offers two.
const SHELLS: &[(&str, Spelling)] = &[
    ("exec_command", Spelling::Cmd),
    ("shell_command", Spelling::Bare),
    ("Bash", Spelling::Command),
    ("bash", Spelling::Command),
    ("run_shell_command", Spelling::Foreground),
    ("shell", Spelling::Argv),
];
