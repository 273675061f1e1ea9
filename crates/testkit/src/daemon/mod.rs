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

pub use account::Account;
pub use feed::{Feed, Seen};
pub use home::{End, Home, Left};
pub use http::{Client, Response};
pub use keepers::{Held, Victim, run_of};
pub use process::{Death, Running};
pub use story::{Patience, Story, Voice};
