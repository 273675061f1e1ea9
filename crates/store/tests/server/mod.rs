//! The Postgres server of the tests, with a separate schema for each test.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The server that `cargo xtask test` starts. Without it the test fails; it is not skipped.
#[expect(clippy::disallowed_methods, reason = "the test command says where its server is")]
pub(crate) fn postgres_url() -> String {
    std::env::var("ABIDE_TEST_POSTGRES_URL")
        .expect("ABIDE_TEST_POSTGRES_URL is not set: run `cargo xtask test`, which starts a server for it")
}

/// A schema that is used by one test only.
pub(crate) fn new_schema(url: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let join = if url.contains('?') { '&' } else { '?' };
    // The name of a temporary folder is unique even if the process id is reused.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let unique: String =
        folder.path().display().to_string().bytes().map(|byte| format!("{byte:x}")).collect();
    let unique = &unique[unique.len() - 12..];
    format!("{url}{join}schema=test_{}_{number}_{unique}", std::process::id())
}
