//! The files in a run's artifacts folder.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A file in a run's artifacts folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactInfo {
    /// Where it is, from that folder.
    #[schema(example = "report.md")]
    pub path: String,
    /// How many bytes it has.
    pub size: u64,
    /// When it was last written to.
    pub modified_at: String,
}

/// A page of a run's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactPage {
    /// The files, by path.
    pub items: Vec<ArtifactInfo>,
    /// Where the next page starts; none if there is none.
    pub next_cursor: Option<String>,
    /// Whether the folder holds more than one listing looks at. The files that are missing can still be read by their path.
    pub truncated: bool,
}
