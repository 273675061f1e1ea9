//! The real daemon in a temporary home, for tests from outside: starts, kills and restarts it, sends HTTP requests and
//! reads its events.
//!
//! No code of the daemon is linked. The harness uses only the command line, the home directory and the HTTP routes.
//! Each wait is for an event and has a timeout, so that a hang becomes a failure with a message.

mod command;
mod events;
mod home;
mod http;
mod process;
mod processes;
mod raw;
mod record;
mod rpc;
mod runs;
mod scenario;
mod terminal;

pub use command::TestCommandOutput;
pub use events::{EventReader, EventStream, SeenEvent};
pub use home::TestHome;
pub use http::{TestHttpClient, TestHttpResponse};
pub use process::{DaemonExit, TestDaemon};
pub use processes::{CrashVictim, HomeProcess, LiveKeeper, run_of};
pub use raw::RawConnection;
pub use record::ScenarioRecord;
pub use rpc::RpcTestClient;
pub use scenario::{RetryLimits, ScenarioPlayer, TestScenario};
pub use terminal::TerminalUser;
