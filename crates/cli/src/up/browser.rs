//! Opens a page in the user's browser.

use std::{ffi::OsString, path::Path};

use abide_keeper::detached::DetachedCommand;

use crate::{error::eprint_line, home};

/// Opens the page, or prints its URL.
pub(super) fn open(url: &str) {
    let own = home::variable("BROWSER");
    let programs = own.as_deref().into_iter().chain(["xdg-open", "open"]);
    for program in programs {
        let started = DetachedCommand {
            program: program.as_ref(),
            arguments: &[OsString::from(url)],
            env: &[],
            directory: Path::new("/"),
            input: None,
            output: None,
            errors: None,
        }
        .start();
        if started.is_ok() {
            return;
        }
    }
    eprint_line(format_args!("abide: no browser was found here; open {url} in one"));
}
