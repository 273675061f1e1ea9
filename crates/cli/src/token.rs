//! `abide token`: manages tokens and browser sign-ins, through the daemon if one runs, otherwise in the home's files.

use std::{io::Write, path::Path, process::ExitCode};

use abide_api::access::{AccessError, AccessRegistry};
use abide_domain::time::Timestamp;
use abide_host::clock::SystemClock;
use abide_ports::clock::Clock;
use abide_wire::access::{AccessToken, CreateTokenRequest, IssuedToken, Permission, SignIn};

use crate::{
    args::{TokenCommand, TokenLs, TokenNew, TokenRevoke, TokenRotate},
    client::DaemonClient,
    config::GivenSetting,
    error::{CliError, eprint_line},
    exit::SUCCEEDED,
    home,
    runs::{print_json, times},
    table::{self, ColourMode, TableCell, TextStyle},
    terminal_text,
    up::{HomeLock, access},
};

pub(crate) fn run(command: &TokenCommand, overrides: &[GivenSetting]) -> anyhow::Result<ExitCode> {
    let credentials = CredentialAccess::open(overrides)?;
    match command {
        TokenCommand::Ls(arguments) => list(&credentials, arguments),
        TokenCommand::New(arguments) => new(&credentials, arguments),
        TokenCommand::Rotate(arguments) => rotate(&credentials, arguments),
        TokenCommand::Revoke(arguments) => revoke(&credentials, arguments),
    }
}

enum CredentialAccess {
    Daemon(DaemonClient),
    /// No daemon runs, and the lock prevents one from starting.
    Home(AccessRegistry, #[expect(dead_code, reason = "it is held, not used")] HomeLock),
}

impl CredentialAccess {
    fn open(overrides: &[GivenSetting]) -> anyhow::Result<Self> {
        if let Some(client) = DaemonClient::connect_existing(overrides)? {
            return Ok(Self::Daemon(client));
        }
        let home = home::home()?;
        home::prepare(&home)?;
        Self::open_home(&home)
    }

    fn open_home(home: &Path) -> anyhow::Result<Self> {
        let lock = HomeLock::take(home)?;
        Ok(Self::Home(access::open(home)?, lock))
    }
}

fn now() -> Timestamp {
    SystemClock.stamp().at
}

fn list(credentials: &CredentialAccess, arguments: &TokenLs) -> anyhow::Result<ExitCode> {
    if arguments.sign_ins {
        let sign_ins = match credentials {
            CredentialAccess::Daemon(client) => client.sign_ins()?,
            CredentialAccess::Home(registry, _) => registry.sign_ins(now()),
        };
        if arguments.output.json {
            print_json(&sign_ins)?;
        } else if sign_ins.is_empty() {
            eprint_line("abide: no browser is signed in");
        } else {
            let head = ["SIGN-IN", "TOKEN", "AGE", "LAST USED", "EXPIRES", "BROWSER"];
            print_table(&head, sign_ins.iter().map(sign_in_row))?;
        }
        return Ok(SUCCEEDED);
    }
    let tokens = match credentials {
        CredentialAccess::Daemon(client) => client.tokens()?,
        CredentialAccess::Home(registry, _) => registry.tokens(),
    };
    match arguments.output.json {
        true => print_json(&tokens)?,
        false => print_table(
            &["TOKEN", "PERMISSIONS", "AGE", "LAST USED", "EXPIRES"],
            tokens.iter().map(token_row),
        )?,
    }
    Ok(SUCCEEDED)
}

fn new(credentials: &CredentialAccess, arguments: &TokenNew) -> anyhow::Result<ExitCode> {
    let TokenNew { name, permit, expires, output } = arguments;
    let new =
        CreateTokenRequest { name: name.clone(), permissions: permit.clone(), expires_in_sec: *expires };
    let issued = match credentials {
        CredentialAccess::Daemon(client) => client.new_token(&new)?,
        CredentialAccess::Home(registry, _) => registry.create_token(&new, now()).map_err(access_error)?,
    };
    print_issued(&issued, output.json)
}

fn rotate(credentials: &CredentialAccess, arguments: &TokenRotate) -> anyhow::Result<ExitCode> {
    let issued = match credentials {
        CredentialAccess::Daemon(client) => client.rotate_token(&arguments.name)?,
        CredentialAccess::Home(registry, _) => {
            registry.rotate(&arguments.name, now()).map_err(access_error)?
        }
    };
    print_issued(&issued, arguments.output.json)
}

fn revoke(credentials: &CredentialAccess, arguments: &TokenRevoke) -> anyhow::Result<ExitCode> {
    for name in &arguments.names {
        match credentials {
            CredentialAccess::Daemon(client) => client.revoke(name)?,
            CredentialAccess::Home(registry, _) => registry.revoke(name).map_err(access_error)?,
        }
    }
    let mut out = std::io::stdout().lock();
    match arguments.output.json {
        true => writeln!(out, "{}", serde_json::json!({ "revoked": arguments.names }))?,
        false => {
            for name in &arguments.names {
                writeln!(out, "{}", terminal_text::one_line(name))?;
            }
        }
    }
    Ok(SUCCEEDED)
}

/// Uses the same error codes as the daemon.
fn access_error(error: AccessError) -> CliError {
    let detail = error.to_string();
    match error {
        AccessError::Invalid(_) => CliError { code: "INVALID_REQUEST".to_owned(), ..CliError::usage(detail) },
        AccessError::NameTaken(_) => CliError::failure("TOKEN_EXISTS", detail),
        AccessError::NotFound(_) => CliError::failure("TOKEN_NOT_FOUND", detail),
        AccessError::OwnerNotRevocable => CliError::failure("OWNER_TOKEN", detail),
        AccessError::CredentialEnded(_) => CliError::failure("UNAUTHORIZED", detail),
        AccessError::TooManyTokens => CliError::failure("TOO_MANY_TOKENS", detail),
        AccessError::Storage(_) | AccessError::Damaged(_) => CliError::failure("FAILED", detail),
    }
}

/// Only the secret is printed to standard output, so that it can be piped.
fn print_issued(issued: &IssuedToken, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        print_json(issued)?;
        return Ok(SUCCEEDED);
    }
    writeln!(std::io::stdout().lock(), "{}", issued.secret)?;
    eprint_line("abide: this secret is shown only once; clients send it as `authorization: Bearer SECRET`");
    Ok(SUCCEEDED)
}

fn print_table(head: &[&str], rows: impl Iterator<Item = Vec<TableCell>>) -> anyhow::Result<()> {
    let head = head.iter().map(|title| TextStyle::Heading.cell(*title)).collect();
    let rows: Vec<Vec<TableCell>> = std::iter::once(head).chain(rows).collect();
    let mut out = std::io::stdout().lock();
    for line in table::format_rows(&rows, ColourMode::of_stdout()) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn token_row(token: &AccessToken) -> Vec<TableCell> {
    let permits: Vec<&str> =
        token.permissions.iter().map(|permission| Permission::as_str(*permission)).collect();
    vec![
        TextStyle::Plain.cell(terminal_text::one_line(&token.name)),
        TextStyle::Plain.cell(permits.join(",")),
        TextStyle::Plain.cell(ago(token.created_at.as_deref(), "-")),
        TextStyle::Plain.cell(ago(token.last_used_at.as_deref(), "never")),
        TextStyle::Plain.cell(token.expires_at.clone().unwrap_or_else(|| "never".to_owned())),
    ]
}

fn sign_in_row(sign_in: &SignIn) -> Vec<TableCell> {
    vec![
        TextStyle::Plain.cell(terminal_text::one_line(&sign_in.sign_in_id)),
        TextStyle::Plain.cell(terminal_text::one_line(&sign_in.token)),
        TextStyle::Plain.cell(ago(Some(&sign_in.created_at), "-")),
        TextStyle::Plain.cell(ago(sign_in.last_used_at.as_deref(), "never")),
        TextStyle::Plain.cell(sign_in.expires_at.clone()),
        TextStyle::Plain.cell(terminal_text::one_line(sign_in.browser.as_deref().unwrap_or("-"))),
    ]
}

fn ago(at: Option<&str>, otherwise: &str) -> String {
    at.map_or_else(|| otherwise.to_owned(), times::elapsed_since)
}
