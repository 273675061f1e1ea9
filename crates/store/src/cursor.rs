//! Cursors of lists: the id of the last item of the previous page.

use std::str::FromStr;

use abide_ports::store::{PageRequest, StoreError, StoreInputError};

/// The item after which the page starts; none for the first page.
pub(crate) fn position<Id: FromStr>(page: &PageRequest) -> Result<Option<Id>, StoreError> {
    let parsed = page.cursor.as_deref().map(str::parse).transpose();
    parsed.map_err(|_| StoreError::Invalid(StoreInputError::Cursor))
}
