//! The client of keepers, for all programs that start or use one.
//!
//! It finds keepers ([`find`], [`connect`]), starts them ([`crate::launch::KeeperLauncher::start_child`]), exchanges
//! messages on one connection ([`KeeperConnection`], or [`SharedConnection`] for several threads), runs a child or a
//! command to its end ([`run_to_end`], [`run_command`]) and ends keepers ([`KeeperConnection::end`],
//! [`end_in_directory`]). [`timeouts`] has the time limits of all of them.
//!
//! The client knows the protocol and not the purpose of the child.

mod connection;
mod end;
mod lookup;
mod requests;
mod run;
mod shared;
pub mod timeouts;
mod watchdog;

pub use connection::{FIRST_RESPONSE_TAG, KeeperConnection};
pub use end::{EndMode, end_in_directory, kill_unresponsive, remove_dead_keeper};
pub use lookup::{KeeperLookup, UnclaimedPolicy, connect, find};
pub use requests::KeeperRequests;
pub use run::{
    ChildEnd, ChildInput, CommandEnd, CommandError, OutputConsumer, RunStop, run_command, run_to_end,
};
pub use shared::{FollowedOutput, SharedConnection};
pub use watchdog::{KeeperDuty, KeeperWatch, KeeperWatchdog};
