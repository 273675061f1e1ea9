//! Stories of runs, told in events, each with its expected end. The names are the claims.

mod deciding;
mod delivering;
mod failing;
mod losing;
mod recovering;
mod resuming;
mod talking;
mod teller;
mod timing;
mod waiting;
