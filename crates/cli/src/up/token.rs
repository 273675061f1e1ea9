//! The secret that clients of this home show: `token`, readable by its owner only.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::Context;

/// The file in the home.
const FILE: &str = "token";

/// The token of this home, made if there is none yet.
pub(crate) fn of(home: &Path) -> anyhow::Result<String> {
    let path = home.join(FILE);
    let failed = || format!("cannot use {}", path.display());
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => {
            let token = fresh().with_context(failed)?;
            file.write_all(token.as_bytes()).and_then(|()| file.sync_all()).with_context(failed)?;
            Ok(token)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let token = fs::read_to_string(&path).with_context(failed)?;
            let token = token.trim();
            anyhow::ensure!(
                !token.is_empty(),
                "{} is empty; delete it, and the next start makes a new one",
                path.display()
            );
            Ok(token.to_owned())
        }
        Err(error) => Err(error).with_context(failed),
    }
}

/// 256 random bits.
fn fresh() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled < bytes.len() {
        return Err(io::Error::other("the system has too little randomness"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
