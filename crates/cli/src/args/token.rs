//! Arguments of `abide token`.

use abide_wire::access::Permission;
use clap::{Args, Subcommand};

use super::OutputArguments;

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// List tokens, or the browsers that are signed in
    #[command(
        after_help = "Examples:\n  abide token ls\n  abide token ls --sign-ins\n  abide token ls --json | jq -r '.[].name'"
    )]
    Ls(TokenLs),
    /// Create a token and print its secret, which is shown only once
    #[command(after_help = NEW_HELP)]
    New(TokenNew),
    /// Replace the secret of a token; the old secret and its sign-ins become invalid at once
    #[command(
        after_help = "The new secret of `owner` is written to the file `token` of Abide's home, where commands read it, and is printed too.\n\nExamples:\n  abide token rotate ci\n  abide token rotate owner"
    )]
    Rotate(TokenRotate),
    /// Revoke tokens, or sign browsers out
    #[command(
        after_help = "The sign-ins of a token end with it. The owner's token can only be rotated.\n\nExamples:\n  abide token revoke ci\n  abide token revoke sin_0123456789abcdef"
    )]
    Revoke(TokenRevoke),
}

const NEW_HELP: &str = "Permissions:
  read     look at runs, questions, events, files and figures
  answer   answer questions that are no approvals
  approve  answer approvals
  run      start runs, send messages to them, interrupt and cancel them
  admin    everything: also terminals, tokens and stopping the daemon

Examples:
  abide token new dashboard --permit read
  abide token new phone --permit read,answer,approve --expires 30d
  abide token new ci --permit read,run --json | jq -r .secret";

impl TokenCommand {
    pub(super) fn output(&self) -> &OutputArguments {
        match self {
            Self::Ls(arguments) => &arguments.output,
            Self::New(arguments) => &arguments.output,
            Self::Rotate(arguments) => &arguments.output,
            Self::Revoke(arguments) => &arguments.output,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct TokenLs {
    /// List browser sign-ins instead of tokens
    #[arg(long)]
    pub(crate) sign_ins: bool,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct TokenNew {
    /// Its name: letters, digits, `.`, `_` and `-`
    pub(crate) name: String,
    /// Permissions: read, answer, approve, run, admin
    #[arg(long, value_name = "PERMISSION", value_delimiter = ',', required = true, value_parser = permission)]
    pub(crate) permit: Vec<Permission>,
    /// Lifetime, such as 12h or 30d [default: no expiry]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(crate) expires: Option<u32>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRotate {
    /// The token; `owner` is the one in the file `token`
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

#[derive(Debug, Args)]
pub(crate) struct TokenRevoke {
    /// Names of tokens, or ids of sign-ins
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
}

fn permission(text: &str) -> Result<Permission, String> {
    let permission = Permission::ALL.into_iter().find(|permission| permission.as_str() == text);
    permission.ok_or_else(|| "expected read, answer, approve, run or admin".to_owned())
}

/// Parses a duration such as `90s`, `15m`, `12h` or `30d` into seconds.
fn seconds(text: &str) -> Result<u32, String> {
    let expected =
        || "expected a number with s, m, h or d, such as 12h or 30d, of at most ten years".to_owned();
    let (number, unit) = text.split_at(text.len() - text.chars().last().map_or(0, char::len_utf8));
    let unit: u32 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(expected()),
    };
    let number: u32 = number.parse().map_err(|_| expected())?;
    let seconds = number.checked_mul(unit).filter(|seconds| (1..=315_360_000).contains(seconds));
    seconds.ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_an_end() {
        assert_eq!(
            ["90s", "15m", "12h", "30d"].map(|text| seconds(text).ok()),
            [Some(90), Some(900), Some(43_200), Some(2_592_000)]
        );
        for wrong in ["", "d", "30", "-1d", "0s", "1w", "99999d", "4294967295d", "1é"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
