//! Programs that stay between calls, held by keepers.
//!
//! Reading order: which kind of program a tool is (`program`), where its sessions lie and who they are (`record`,
//! `found`), how one is started (`start`), how it is spoken to (`shell` for shells that take commands, `talk` for
//! everything else), what a call makes of all that (`call`), and what is done about one that nobody heard the end of
//! (`leaving`). A session belongs to nobody's memory: each call finds it again by its directory, so the next process goes
//! on where this one ended.
//!
//! Not here: programs that are started for one call; those are [`crate::tool`].

pub(crate) mod call;
pub(crate) mod copies;
pub(crate) mod found;
pub(crate) mod leaving;
pub(crate) mod program;
pub(crate) mod record;
pub(crate) mod shell;
pub(crate) mod start;
pub(crate) mod talk;
