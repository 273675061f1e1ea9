//! The real daemon in a temporary home, for tests from outside: starts, kills and restarts it, sends HTTP requests and
//! reads its events.
//!
//! No code of the daemon is linked. The harness uses only the command line, the home directory and the HTTP routes.
//! Each wait is for an event and has a timeout, so that a hang becomes a failure with a message.

mod account;
mod feed;
mod home;
mod http;
mod keepers;
mod process;
mod story;

pub use account::ScenarioRecord;
pub use feed::{EventReader, SeenEvent};
pub use home::{HomeProcess, TestCommandOutput, TestHome};
pub use http::{TestHttpClient, TestHttpResponse};
pub use keepers::{CrashVictim, LiveKeeper, run_of};
pub use process::{DaemonExit, TestDaemon};
pub use story::{RetryLimits, ScenarioPlayer, TestScenario};
