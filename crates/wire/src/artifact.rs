//! The files in a run's artifacts folder.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A file in a run's artifacts folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactInfo {
    /// Path relative to that folder.
    #[schema(example = "report.md")]
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    pub modified_at: String,
}

/// A page of a run's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactPage {
    /// Sorted by path.
    pub items: Vec<ArtifactInfo>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
    /// Whether the listing reached a bound and is incomplete. Omitted files can be read by their path.
    pub truncated: bool,
}
