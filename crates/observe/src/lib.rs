//! Metrics, traces and logs for operators.
//!
//! - [`observed_store`] wraps a store and intercepts calls; [`commit_notifier`] notifies observers of each commit.
//! - [`metrics`] counts commits, requests and removed items, and encodes them for Prometheus.
//! - [`traces`] sends a span for each completed run, turn and attempt to an OpenTelemetry collector.
//! - [`logs`] writes log lines to standard error or to rotating files.
//!
//! The HTTP routes that show these values are in `api`. Which values are configured is decided in `cli`.

pub mod commit_notifier;
pub mod logs;
pub mod metrics;
pub mod observed_store;
pub mod traces;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ObserveReadme;
