//! Serializes a path as bytes, because a path need not be UTF-8.
//!
//! The encoding equals that of a string, so a path in UTF-8 is compatible with earlier versions.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(path.as_os_str().as_bytes())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let bytes: Vec<u8> = serde_bytes::deserialize(deserializer)?;
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct PathMessage(#[serde(with = "super")] PathBuf);

    #[test]
    fn any_path_arrives_and_one_that_is_utf_8_is_written_as_a_string() {
        let unusual = PathBuf::from(OsString::from_vec(b"/tmp/caf\xe9 \xff".to_vec()));
        let bytes = postcard::to_stdvec(&PathMessage(unusual.clone())).unwrap();
        assert_eq!(postcard::from_bytes::<PathMessage>(&bytes).unwrap().0, unusual);
        let plain = postcard::to_stdvec(&PathMessage("/etc/käfer".into())).unwrap();
        assert_eq!(plain, postcard::to_stdvec("/etc/käfer").unwrap());
    }
}
