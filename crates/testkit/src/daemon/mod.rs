//! The real daemon in a home of its own, for whoever tests it from outside: started, killed, started again, asked over
//! HTTP and listened to.
//!
//! Nothing of the daemon is linked in; what is known of it is its command line, its home and its routes. Every wait is for
//! an event and has a bound, so that a hang is a failure with a name.

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
