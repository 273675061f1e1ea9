//! What can be set about the interface, and the values that hold where nobody set anything.

/// What can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Names by which the daemon may be called besides those of this machine's own loopback.
    pub allowed_hosts: Vec<String>,
    /// The largest JSON body that is taken.
    pub max_body_bytes: usize,
    /// The most connections at a time.
    pub max_connections: usize,
    /// The most event streams and WebSockets at a time, out of the connections.
    pub max_streams: usize,
    /// How many requests a second one client may make in the long run; 0 is any number.
    pub requests_per_second: u32,
    /// How many seconds a client may take to send a request's head, or to take anything of an answer.
    pub patience_sec: u32,
    /// Where a run's files for the person are, from its workspace.
    pub artifacts: String,
}

impl HttpConfig {
    /// What holds unless it is set.
    pub fn standard(artifacts: &str) -> Self {
        Self {
            allowed_hosts: Vec::new(),
            max_body_bytes: 1 << 20,
            max_connections: 1024,
            max_streams: 512,
            requests_per_second: 1000,
            patience_sec: 30,
            artifacts: artifacts.to_owned(),
        }
    }
}
