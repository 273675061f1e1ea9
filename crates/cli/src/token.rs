//! `abide token`: tokens and browser sign-ins, through the daemon if one runs, and otherwise in the home itself.

use std::{io::Write, path::Path, process::ExitCode};

use abide_api::access::{AccessError, AccessRegistry};
use abide_domain::time::Timestamp;
use abide_ports::clock::Clock;
use abide_wire::access::{AccessToken, CreateTokenRequest, IssuedToken, Permission, SignIn};

use crate::{
    access,
    args::{TokenCommand, TokenLs, TokenNew, TokenRevoke, TokenRotate},
    client::Client,
    clock::SystemClock,
    config::Given,
    exit::SUCCEEDED,
    home, private,
    runs::{print_json, when},
    table::{self, Cell, Colour, Look},
    text,
    trouble::{Trouble, note},
    up::HomeLock,
};

pub(crate) fn run(command: &TokenCommand, given: &[Given]) -> anyhow::Result<ExitCode> {
    let credentials = Credentials::open(given)?;
    match command {
        TokenCommand::Ls(arguments) => list(&credentials, arguments),
        TokenCommand::New(arguments) => new(&credentials, arguments),
        TokenCommand::Rotate(arguments) => rotate(&credentials, arguments),
        TokenCommand::Revoke(arguments) => revoke(&credentials, arguments),
    }
}

/// The way to the credentials of this home.
enum Credentials {
    Daemon(Client),
    /// No daemon runs, and none is started while this is held.
    Home(AccessRegistry, #[expect(dead_code, reason = "it is held, not used")] HomeLock),
}

impl Credentials {
    fn open(given: &[Given]) -> anyhow::Result<Self> {
        if let Some(client) = Client::existing(given)? {
            return Ok(Self::Daemon(client));
        }
        let home = home::home()?;
        private::home(&home)?;
        Self::of_home(&home)
    }

    fn of_home(home: &Path) -> anyhow::Result<Self> {
        let lock = HomeLock::take(home)?;
        Ok(Self::Home(access::open(home)?, lock))
    }
}

fn now() -> Timestamp {
    SystemClock.stamp().at
}

fn list(credentials: &Credentials, arguments: &TokenLs) -> anyhow::Result<ExitCode> {
    if arguments.sign_ins {
        let sign_ins = match credentials {
            Credentials::Daemon(client) => client.sign_ins()?,
            Credentials::Home(registry, _) => registry.sign_ins(now()),
        };
        if arguments.output.json {
            print_json(&sign_ins)?;
        } else if sign_ins.is_empty() {
            note("abide: no browser is signed in");
        } else {
            let head = ["SIGN-IN", "TOKEN", "AGE", "USED", "EXPIRES", "BROWSER"];
            print_table(&head, sign_ins.iter().map(sign_in_row))?;
        }
        return Ok(SUCCEEDED);
    }
    let tokens = match credentials {
        Credentials::Daemon(client) => client.tokens()?,
        Credentials::Home(registry, _) => registry.tokens(),
    };
    match arguments.output.json {
        true => print_json(&tokens)?,
        false => print_table(&["TOKEN", "PERMITS", "AGE", "USED", "EXPIRES"], tokens.iter().map(token_row))?,
    }
    Ok(SUCCEEDED)
}

fn new(credentials: &Credentials, arguments: &TokenNew) -> anyhow::Result<ExitCode> {
    let TokenNew { name, permit, expires, output } = arguments;
    let new =
        CreateTokenRequest { name: name.clone(), permissions: permit.clone(), expires_in_sec: *expires };
    let issued = match credentials {
        Credentials::Daemon(client) => client.new_token(&new)?,
        Credentials::Home(registry, _) => registry.new_token(&new, now()).map_err(refused)?,
    };
    print_issued(&issued, output.json)
}

fn rotate(credentials: &Credentials, arguments: &TokenRotate) -> anyhow::Result<ExitCode> {
    let issued = match credentials {
        Credentials::Daemon(client) => client.rotate_token(&arguments.name)?,
        Credentials::Home(registry, _) => registry.rotate(&arguments.name, now()).map_err(refused)?,
    };
    print_issued(&issued, arguments.output.json)
}

fn revoke(credentials: &Credentials, arguments: &TokenRevoke) -> anyhow::Result<ExitCode> {
    for name in &arguments.names {
        match credentials {
            Credentials::Daemon(client) => client.revoke(name)?,
            Credentials::Home(registry, _) => registry.revoke(name).map_err(refused)?,
        }
    }
    let mut out = std::io::stdout().lock();
    match arguments.output.json {
        true => writeln!(out, "{}", serde_json::json!({ "revoked": arguments.names }))?,
        false => {
            for name in &arguments.names {
                writeln!(out, "{}", text::one_line(name))?;
            }
        }
    }
    Ok(SUCCEEDED)
}

/// The same codes as the daemon answers with.
fn refused(error: AccessError) -> Trouble {
    let detail = error.to_string();
    match error {
        AccessError::Invalid(_) => Trouble { code: "INVALID_REQUEST".to_owned(), ..Trouble::usage(detail) },
        AccessError::Exists(_) => Trouble::failure("TOKEN_EXISTS", detail),
        AccessError::Unknown(_) => Trouble::failure("TOKEN_NOT_FOUND", detail),
        AccessError::Owner => Trouble::failure("OWNER_TOKEN", detail),
        AccessError::Full => Trouble::failure("TOO_MANY_TOKENS", detail),
        AccessError::Storage(_) | AccessError::Damaged(_) => Trouble::failure("FAILED", detail),
    }
}

/// The secret is all that goes to standard output, so that it can be passed on.
fn print_issued(issued: &IssuedToken, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        print_json(issued)?;
        return Ok(SUCCEEDED);
    }
    writeln!(std::io::stdout().lock(), "{}", issued.secret)?;
    note("abide: this secret is shown only once; clients send it as `authorization: Bearer SECRET`");
    Ok(SUCCEEDED)
}

fn print_table(head: &[&str], rows: impl Iterator<Item = Vec<Cell>>) -> anyhow::Result<()> {
    let head = head.iter().map(|title| Look::Head.cell(*title)).collect();
    let rows: Vec<Vec<Cell>> = std::iter::once(head).chain(rows).collect();
    let mut out = std::io::stdout().lock();
    for line in table::lines(&rows, Colour::of_stdout()) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn token_row(token: &AccessToken) -> Vec<Cell> {
    let permits: Vec<&str> =
        token.permissions.iter().map(|permission| Permission::as_str(*permission)).collect();
    vec![
        Look::Plain.cell(text::one_line(&token.name)),
        Look::Plain.cell(permits.join(",")),
        Look::Plain.cell(ago(token.created_at.as_deref(), "-")),
        Look::Plain.cell(ago(token.last_used_at.as_deref(), "never")),
        Look::Plain.cell(token.expires_at.clone().unwrap_or_else(|| "never".to_owned())),
    ]
}

fn sign_in_row(sign_in: &SignIn) -> Vec<Cell> {
    vec![
        Look::Plain.cell(text::one_line(&sign_in.sign_in_id)),
        Look::Plain.cell(text::one_line(&sign_in.token)),
        Look::Plain.cell(ago(Some(&sign_in.created_at), "-")),
        Look::Plain.cell(ago(sign_in.last_used_at.as_deref(), "never")),
        Look::Plain.cell(sign_in.expires_at.clone()),
        Look::Plain.cell(text::one_line(sign_in.browser.as_deref().unwrap_or("-"))),
    ]
}

fn ago(at: Option<&str>, otherwise: &str) -> String {
    at.map_or_else(|| otherwise.to_owned(), when::ago)
}
