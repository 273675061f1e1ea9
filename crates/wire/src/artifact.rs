//! Files that a run made for the person.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A file in a run's artifacts folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Artifact {
    /// Where it is, from that folder.
    #[schema(example = "report.md")]
    pub path: String,
    /// How many bytes it has.
    pub size: u64,
    /// When it was last written to.
    pub modified_at: String,
}
