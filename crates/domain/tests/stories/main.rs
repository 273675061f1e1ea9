//! Event sequences of runs with their expected results. The test names are the claims.

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
