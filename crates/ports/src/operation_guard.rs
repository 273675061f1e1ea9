//! The guard of operations that may crash the daemon: an operation during which daemons died is delayed.
//!
//! Adapters ask for permission before they delete a tree or end a foreign process. The rules of the delay are the
//! daemon's.

use std::pin::Pin;

/// Decides which operations may be performed now.
pub trait OperationGuard: Send + Sync {
    /// Records an operation that begins. `None` if it must be tried later.
    fn admit<'a>(&'a self, item: &'a str) -> AdmissionFuture<'a>;

    /// Forgets operations with this prefix that are no longer pending.
    fn forget(&self, prefix: &str, is_pending: &dyn Fn(&str) -> bool);
}

/// The answer of [`OperationGuard::admit`].
pub type AdmissionFuture<'a> = Pin<Box<dyn Future<Output = Option<Box<dyn GuardedOperation>>> + Send + 'a>>;

/// An operation in progress. Dropping it removes its record and keeps the count of crashes.
pub trait GuardedOperation: Send {
    /// Records that the operation has ended, with any result, and clears the count of crashes.
    fn succeeded(self: Box<Self>);
}
