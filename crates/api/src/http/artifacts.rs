//! A run's files for the person: what its engine put into the artifacts folder of its workspace.
//!
//! The folder's contents are whatever an agent made of them, so nothing is believed: each part of a path is opened from
//! the one before it and a link is never followed, neither in the folder nor on the way to it. What is no plain file is
//! not there. Browsers are told to save what they get rather than to show it.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::OwnedFd,
};

use abide_wire::{artifact as wire, service};
use axum::{
    Json,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, open, openat, statat},
    io::Errno,
};

use super::{
    Interface,
    body::{Path, Query},
    problem::{Code, Problem},
    runs::{Part, find, run_id},
    translate,
};

/// The most files that are listed, and how deep folders are looked into.
const MOST_FILES: usize = 10_000;
const DEEPEST: usize = 16;
/// How much of a file is read at a time.
const PIECE: usize = 64 << 10;

/// Lists a run's files, by path.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/artifacts", tag = "artifacts", operation_id = "list_artifacts",
    params(("run_id" = String, Path, description = "The run."), Part),
    responses(
        (status = 200, description = "A page of files.", body = service::Page<wire::Artifact>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn list(
    State(interface): State<Interface>,
    Path(id): Path<String>,
    Query(part): Query<Part>,
) -> Result<Json<service::Page<wire::Artifact>>, Problem> {
    let page = part.page()?;
    let folder = Folder::of(&interface, &id).await?;
    let mut files = blocking(move || folder.files()).await?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let first = page.cursor.map_or(0, |cursor| files.partition_point(|file| file.path <= cursor));
    let mut items: Vec<_> = files.into_iter().skip(first).take(page.limit + 1).collect();
    let more = items.len() > page.limit;
    items.truncate(page.limit);
    let next_cursor = items.last().filter(|_| more).map(|last| last.path.clone());
    Ok(Json(service::Page { items, next_cursor }))
}

/// Reads a file, or a range of it.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/artifacts/{*path}", tag = "artifacts", operation_id = "read_artifact",
    params(
        ("run_id" = String, Path, description = "The run."),
        ("path" = String, Path, description = "The file, from the artifacts folder; slashes may be written as they are."),
        ("Range" = Option<String>, Header, description = "One range of bytes, such as `bytes=0-1023`."),
    ),
    responses(
        (status = 200, description = "The file.", content_type = "application/octet-stream"),
        (status = 206, description = "A range of it.", content_type = "application/octet-stream"),
        (status = 404, description = "`RUN_NOT_FOUND`, `ARTIFACT_NOT_FOUND`"),
        (status = 416, description = "`RANGE_NOT_SATISFIABLE`"),
    ),
)]
pub(super) async fn read(
    State(interface): State<Interface>,
    Path((id, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let folder = Folder::of(&interface, &id).await?;
    let wanted = path.clone();
    let opened = blocking(move || folder.open(&wanted)).await?;
    let (file, size) = opened.ok_or_else(|| {
        Problem::new(
            Code::ArtifactNotFound,
            format!("the run has no such file; GET /v1/runs/{id}/artifacts lists all"),
        )
    })?;
    let range = range(&headers, size)?;
    let (first, length) = range.unwrap_or((0, size));
    let mut response = Response::new(Body::from_stream(pieces(file, first, length)));
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        insert(&mut response, header::CONTENT_RANGE, &format!("bytes {first}-{}/{size}", first + length - 1));
    }
    insert(&mut response, header::CONTENT_LENGTH, &length.to_string());
    insert(&mut response, header::CONTENT_TYPE, kind(&path));
    insert(&mut response, header::ACCEPT_RANGES, "bytes");
    insert(&mut response, header::CONTENT_DISPOSITION, &disposition(&path));
    insert(&mut response, header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox");
    Ok(response)
}

fn insert(response: &mut Response, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// The artifacts folder of a run.
struct Folder {
    workspace: String,
    artifacts: String,
}

impl Folder {
    async fn of(interface: &Interface, id: &str) -> Result<Self, Problem> {
        let run = find(interface, run_id(id)?).await?;
        Ok(Self {
            workspace: run.settings.workspace.clone(),
            artifacts: interface.0.settings.artifacts.clone(),
        })
    }

    /// The folder itself. The workspace is the owner's word and may lead anywhere; what is below it may not.
    fn enter(&self) -> Result<OwnedFd, Errno> {
        let workspace =
            open(&self.workspace, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        self.artifacts.split('/').try_fold(workspace, |above, part| folder(&above, part))
    }

    /// The file of that name and its size, if it is a plain one.
    fn open(&self, path: &str) -> Option<(File, u64)> {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parts = || folders.split('/').filter(|part| !part.is_empty());
        let is_fit = |part: &str| part != "." && part != ".." && !part.contains('\0');
        if path.starts_with('/') || name.is_empty() || !parts().chain([name]).all(is_fit) {
            return None;
        }
        let above = parts().try_fold(self.enter().ok()?, |above, part| folder(&above, part)).ok()?;
        // Without NONBLOCK a pipe would be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&above, name, flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_plain.then(|| (File::from(file), u64::try_from(stat.st_size).unwrap_or(0)))
    }

    /// All plain files below the folder; none if it is not there.
    fn files(&self) -> Vec<wire::Artifact> {
        let mut files = Vec::new();
        if let Ok(top) = self.enter() {
            walk(&top, "", DEEPEST, &mut files);
        }
        files
    }
}

fn folder(above: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(above, name, flags, Mode::empty())
}

fn walk(above: &OwnedFd, prefix: &str, deeper: usize, files: &mut Vec<wire::Artifact>) {
    let Ok(entries) = Dir::read_from(above) else { return };
    for entry in entries.flatten() {
        // A name that is no text cannot be asked for over this interface.
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." || files.len() >= MOST_FILES {
            continue;
        }
        let path = format!("{prefix}{name}");
        let Ok(stat) = statat(above, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => files.push(wire::Artifact {
                path,
                size: u64::try_from(stat.st_size).unwrap_or(0),
                modified_at: translate::time(abide_domain::time::Timestamp(
                    stat.st_mtime.saturating_mul(1_000_000),
                )),
            }),
            FileType::Directory if deeper > 0 => {
                if let Ok(below) = folder(above, name) {
                    walk(&below, &format!("{path}/"), deeper - 1, files);
                }
            }
            FileType::Directory
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
    }
}

/// The bytes of a file, as they are taken. A file that shrinks meanwhile ends the answer early, and the client sees it.
fn pieces(file: File, first: u64, length: u64) -> impl futures_util::Stream<Item = io::Result<Bytes>> {
    futures_util::stream::unfold(Some((file, first, length)), |state| async move {
        let (mut file, at, left) = state.filter(|(_, _, left)| *left > 0)?;
        let read = blocking(move || {
            let mut piece = vec![0; usize::try_from(left).unwrap_or(PIECE).min(PIECE)];
            file.seek(SeekFrom::Start(at))?;
            let count = file.read(&mut piece)?;
            piece.truncate(count);
            Ok::<_, io::Error>((file, piece))
        });
        match read.await {
            Ok(Ok((file, piece))) if !piece.is_empty() => {
                let count = piece.len() as u64;
                Some((Ok(Bytes::from(piece)), Some((file, at + count, left - count))))
            }
            Ok(Ok(_)) => Some((Err(io::ErrorKind::UnexpectedEof.into()), None)),
            Ok(Err(error)) => Some((Err(error), None)),
            Err(_) => Some((Err(io::Error::other("the file could not be read")), None)),
        }
    })
}

/// Where the wanted range begins and how long it is. Several ranges, and units that nobody uses, are answered with the
/// whole, as the rules of HTTP allow.
fn range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, Problem> {
    let Some(given) = headers.get(header::RANGE).and_then(|range| range.to_str().ok()) else {
        return Ok(None);
    };
    let Some((first, last)) = given.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-'))
    else {
        return Ok(None);
    };
    let number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
    };
    let (first, end) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        (Some(first), None) if last.is_empty() => (first, size),
        (None, Some(tail)) if first.is_empty() => (size.saturating_sub(tail), size),
        (Some(_) | None, Some(_) | None) => return Ok(None),
    };
    if first >= end {
        let detail = format!("the file has {size} bytes, and none in that range");
        return Err(Problem::new(Code::RangeNotSatisfiable, detail));
    }
    Ok(Some((first, end - first)))
}

/// What a file is, as far as it can be shown without harm; everything else is bytes.
fn kind(path: &str) -> &'static str {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" | "md" | "csv" | "diff" | "patch" => "text/plain; charset=utf-8",
        "json" => "application/json",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        _ => "application/octet-stream",
    }
}

/// To be saved under its own name.
fn disposition(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect();
    format!("attachment; filename*=UTF-8''{encoded}")
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Problem::internal("the files could not be looked at"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn place() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().unwrap();
        let workspace = place.path().join("work");
        fs::create_dir_all(workspace.join(".abide/artifacts/sub")).unwrap();
        fs::write(workspace.join(".abide/artifacts/report.txt"), "whole").unwrap();
        fs::write(workspace.join(".abide/artifacts/sub/a.png"), "png").unwrap();
        fs::write(place.path().join("secret"), "secret").unwrap();
        let workspace = workspace.to_str().unwrap().to_owned();
        (place, Folder { workspace, artifacts: ".abide/artifacts".to_owned() })
    }

    #[test]
    fn files_are_read_and_listed() {
        let (_place, folder) = place();
        let (mut file, size) = folder.open("sub/a.png").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), size), ("png", 3));
        let mut paths: Vec<_> = folder.files().into_iter().map(|file| file.path).collect();
        paths.sort();
        assert_eq!(paths, ["report.txt", "sub/a.png"]);
    }

    #[test]
    fn nothing_outside_the_folder_is_reached() {
        let (place, folder) = place();
        let artifacts = place.path().join("work/.abide/artifacts");
        symlink(place.path().join("secret"), artifacts.join("link")).unwrap();
        symlink(place.path(), artifacts.join("up")).unwrap();
        for path in [
            "../secret",
            "../../../secret",
            "sub/../../../../secret",
            "/etc/passwd",
            "link",
            "up/secret",
            "",
            ".",
            "sub",
            "sub/",
            "report.txt\0",
            "./report.txt",
        ] {
            assert!(folder.open(path).is_none(), "{path:?}");
        }
        assert_eq!(folder.files().len(), 2);
    }

    #[test]
    fn a_folder_that_is_a_link_is_not_entered() {
        let (place, folder) = place();
        let artifacts = place.path().join("work/.abide/artifacts");
        fs::remove_dir_all(&artifacts).unwrap();
        symlink(place.path(), &artifacts).unwrap();
        assert!(folder.open("secret").is_none());
        assert!(folder.files().is_empty());
    }

    #[test]
    fn a_pipe_is_no_file_and_nobody_waits_for_it() {
        let (place, folder) = place();
        let path = place.path().join("work/.abide/artifacts/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(folder.open("pipe").is_none());
        assert_eq!(folder.files().len(), 2);
    }

    #[test]
    fn ranges_are_read_as_http_means_them() {
        let with = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, text.parse().unwrap());
            range(&headers, 10).map_err(|problem| problem.code)
        };
        assert_eq!(with("bytes=0-3"), Ok(Some((0, 4))));
        assert_eq!(with("bytes=8-100"), Ok(Some((8, 2))));
        assert_eq!(with("bytes=4-"), Ok(Some((4, 6))));
        assert_eq!(with("bytes=-3"), Ok(Some((7, 3))));
        assert_eq!(with("bytes=-100"), Ok(Some((0, 10))));
        for whole in ["bytes=0-1,4-5", "lines=1-2", "bytes=x-", "bytes=5-2", "bytes"] {
            assert_eq!(with(whole), Ok(None), "{whole}");
        }
        assert_eq!(with("bytes=10-"), Err(Code::RangeNotSatisfiable));
        assert_eq!(with("bytes=-0"), Err(Code::RangeNotSatisfiable));
    }
}
