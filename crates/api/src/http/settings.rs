//! Settings of the HTTP interface and their defaults.

/// Settings of the HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Accepted `Host` names in addition to loopback names and our own address.
    pub allowed_hosts: Vec<String>,
    /// Maximum size of a JSON body.
    pub max_body_bytes: usize,
    /// Maximum number of concurrent connections.
    pub max_connections: usize,
    /// Maximum number of concurrent event streams and WebSockets; they also count as connections.
    pub max_streams: usize,
    /// Sustained rate per client; 0 disables the limit.
    pub requests_per_second: u32,
    /// Timeout in seconds for receiving a request head, and for a client that reads nothing of a response.
    pub idle_timeout_sec: u32,
    /// Path of the artifacts folder, relative to the workspace.
    pub artifacts_folder: String,
}

impl HttpConfig {
    pub fn with_defaults(artifacts: &str) -> Self {
        Self {
            allowed_hosts: Vec::new(),
            max_body_bytes: 1 << 20,
            max_connections: 1024,
            max_streams: 512,
            requests_per_second: 1000,
            idle_timeout_sec: 30,
            artifacts_folder: artifacts.to_owned(),
        }
    }
}
