//! The time limits of clients of keepers, in milliseconds.

/// For the first response of a new keeper. It exceeds the keeper's own limits for the start of a confined shell.
pub const START_TIMEOUT_MS: u64 = 30_000;
/// For a keeper that is found while it starts.
pub const STARTUP_WAIT_MS: u64 = 20_000;
/// For a keeper that was started, by a program that may have died since, to claim its directory.
pub const CLAIM_WAIT_MS: u64 = 1_000;
/// Interval of the attempts to connect to a keeper that starts.
pub const STARTUP_POLL_MS: u64 = 5;
/// For the status of a keeper, if the lookup can be repeated. A live keeper responds in less than a millisecond, unless
/// the machine is overloaded.
pub const LOOKUP_TIMEOUT_MS: u64 = 2_000;
/// For the statuses of all keepers that a terminal runtime may adopt. The runtime is blocked meanwhile.
pub const ADOPT_TIMEOUT_MS: u64 = 1_000;
/// For the response to a request. A keeper that exceeds it counts as unresponsive.
pub const RESPONSE_TIMEOUT_MS: u64 = 10_000;
/// For the end of a child and its descendants. It exceeds the keeper's own sequence of signals.
pub const END_TIMEOUT_MS: u64 = 20_000;
/// For a keeper whose child is dead to exit, at the shutdown of a terminal runtime.
pub const SHUTDOWN_TIMEOUT_MS: u64 = 6_000;
/// For a keeper to stop a command after its timeout or an interrupt: SIGTERM, 5 s, SIGKILL, a new shell.
pub const STOP_TIMEOUT_MS: u64 = 30_000;
/// Interval at which a client that waits for output checks its stop flag.
pub const STOP_POLL_MS: u64 = 50;
/// Interval of checks whether a silent keeper is stopped. A command can stop the keeper of its own session.
pub const RESUME_INTERVAL_MS: u64 = 1_000;
/// The same while a keeper that has to end something is found stopped.
pub const STOPPED_RESUME_INTERVAL_MS: u64 = 20;
/// For a keeper that owes a response and is found stopped at each check, although it is continued.
pub const STOPPED_TIMEOUT_MS: u64 = 30_000;
/// The same for a keeper that has to end its child or a command. It exceeds the keeper's own sequence: SIGTERM, 5 s,
/// SIGKILL, and 1 s for a shell to return.
pub const STOPPED_END_TIMEOUT_MS: u64 = 8_000;
/// For the exit of a keeper that was killed.
pub const KILLED_EXIT_TIMEOUT_MS: u64 = 2_000;
/// No time limit.
pub const NO_TIMEOUT_MS: u64 = u64::MAX / 4_000;
