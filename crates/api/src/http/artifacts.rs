//! Artifacts of a run: the files that its engine put into the artifacts folder of its workspace.
//!
//! The folder is untrusted, because an agent controls it. Paths are opened without following symbolic links, in the
//! folder and on the way to it, also above the workspace. Only regular files are served. A listing is limited in entries,
//! depth and time, and reports when it was truncated. Responses tell browsers to download the file instead of
//! displaying it.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path as FilePath,
    time::Duration,
};

use super::{
    HttpState,
    body::{PathParams, QueryParams},
    problem::{HttpProblem, ProblemCode},
    runs::{PageQuery, load_run, parse_run_id},
    translate,
};
use abide_os::{
    OsError,
    beneath::{Directory, FileKind, FileMetadata},
    clock::monotonic,
};
use abide_wire::artifact as wire;
use axum::{
    Json,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};

/// Limits of one listing.
const LISTING_LIMITS: ListingLimits =
    ListingLimits { max_entries: 20_000, max_depth: 16, max_time: Duration::from_secs(5) };
/// Read size, in bytes.
const READ_CHUNK_BYTES: usize = 64 << 10;

/// Lists the artifacts of a run, sorted by path.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/artifacts", tag = "artifacts", operation_id = "list_artifacts",
    params(("run_id" = String, Path, description = "The run."), PageQuery),
    responses(
        (status = 200, description = "A page of artifacts.", body = wire::ArtifactPage),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn list(
    State(interface): State<HttpState>,
    PathParams(id): PathParams<String>,
    QueryParams(part): QueryParams<PageQuery>,
) -> Result<Json<wire::ArtifactPage>, HttpProblem> {
    let page = part.page()?;
    let folder = ArtifactFolder::of(&interface, &id).await?;
    let ArtifactListing { mut files, truncated } = blocking(move || folder.list(LISTING_LIMITS)).await?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let first = page.cursor.map_or(0, |cursor| files.partition_point(|file| file.path <= cursor));
    let mut items: Vec<_> = files.into_iter().skip(first).take(page.limit + 1).collect();
    let more = items.len() > page.limit;
    items.truncate(page.limit);
    let next_cursor = items.last().filter(|_| more).map(|last| last.path.clone());
    Ok(Json(wire::ArtifactPage { items, next_cursor, truncated }))
}

/// Reads an artifact, or a range of it.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/artifacts/{*path}", tag = "artifacts", operation_id = "read_artifact",
    params(
        ("run_id" = String, Path, description = "The run."),
        ("path" = String, Path, description = "Path relative to the artifacts folder. Slashes need no encoding."),
        ("Range" = Option<String>, Header, description = "One range of bytes, such as `bytes=0-1023`."),
    ),
    responses(
        (status = 200, description = "The file.", content_type = "application/octet-stream"),
        (status = 206, description = "A range of the file.", content_type = "application/octet-stream"),
        (status = 404, description = "`RUN_NOT_FOUND`, `ARTIFACT_NOT_FOUND`"),
        (status = 416, description = "`RANGE_NOT_SATISFIABLE`"),
    ),
)]
pub(super) async fn read(
    State(interface): State<HttpState>,
    PathParams((id, path)): PathParams<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    let folder = ArtifactFolder::of(&interface, &id).await?;
    let requested_path = path.clone();
    let opened = blocking(move || folder.open_file(&requested_path)).await?;
    let (file, size) = opened.ok_or_else(|| {
        HttpProblem::new(
            ProblemCode::ArtifactNotFound,
            format!("the run has no such file; GET /v1/runs/{id}/artifacts lists all"),
        )
    })?;
    let range = parse_range(&headers, size)?;
    let (first, length) = range.unwrap_or((0, size));
    let mut response = Response::new(Body::from_stream(stream_file(file, first, length)));
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        insert(&mut response, header::CONTENT_RANGE, &format!("bytes {first}-{}/{size}", first + length - 1));
    }
    insert(&mut response, header::CONTENT_LENGTH, &length.to_string());
    insert(&mut response, header::CONTENT_TYPE, media_type(&path));
    insert(&mut response, header::ACCEPT_RANGES, "bytes");
    insert(&mut response, header::CONTENT_DISPOSITION, &content_disposition(&path));
    insert(&mut response, header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox");
    Ok(response)
}

fn insert(response: &mut Response, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

struct ArtifactFolder {
    workspace: String,
    artifacts: String,
}

impl ArtifactFolder {
    async fn of(interface: &HttpState, id: &str) -> Result<Self, HttpProblem> {
        let run = load_run(interface, parse_run_id(id)?).await?;
        Ok(Self {
            workspace: run.settings.workspace.clone(),
            artifacts: interface.0.settings.artifacts_folder.clone(),
        })
    }

    /// Opens the folder. The path of the workspace was resolved when the run was created, so it contains no links
    /// either.
    fn open_dir(&self) -> Result<Directory, OsError> {
        Directory::open_without_links(FilePath::new(&self.workspace))?.open_directory(&self.artifacts)
    }

    /// Opens a regular file and returns it with its size.
    fn open_file(&self, path: &str) -> Option<(File, u64)> {
        // Each file has exactly one path: empty and `.` components are rejected.
        if path.split('/').any(|part| part.is_empty() || part == ".") {
            return None;
        }
        let file = self.open_dir().ok()?.open_file(path).ok()?;
        let size = file.metadata().ok()?.len();
        Some((file, size))
    }

    /// Lists the regular files below the folder, unsorted. A missing folder has none.
    fn list(&self, limits: ListingLimits) -> ArtifactListing {
        let mut listing = ArtifactListing::default();
        if let Ok(top) = self.open_dir() {
            listing.walk(&top, limits);
        }
        listing
    }
}

#[derive(Clone, Copy)]
struct ListingLimits {
    /// Counts files, folders and all other entries.
    max_entries: usize,
    /// Maximum nesting of folders.
    max_depth: usize,
    max_time: Duration,
}

#[derive(Default)]
struct ArtifactListing {
    files: Vec<wire::ArtifactInfo>,
    /// Whether a limit was reached.
    truncated: bool,
}

impl ArtifactListing {
    fn walk(&mut self, top: &Directory, limits: ListingLimits) {
        let begin = monotonic();
        let mut entries_left = limits.max_entries;
        // Folders still to be listed, with their depth.
        let mut folders = vec![(String::new(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let below;
            let here = if folder.is_empty() {
                top
            } else {
                let Ok(opened) = top.open_directory(&folder) else { continue };
                below = opened;
                &below
            };
            let Ok(entries) = here.entries() else { continue };
            for entry in entries.flatten() {
                if entries_left == 0 || monotonic().saturating_sub(begin) > limits.max_time {
                    self.truncated = true;
                    return;
                }
                entries_left -= 1;
                // A name that is not UTF-8 cannot be requested over HTTP.
                let Some(name) = entry.name.to_str() else { continue };
                let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
                match entry.kind {
                    FileKind::Regular => {
                        let Ok(metadata) = here.metadata(name) else { continue };
                        if metadata.kind == FileKind::Regular {
                            self.files.push(artifact(path, &metadata));
                        }
                    }
                    FileKind::Directory if depth < limits.max_depth => folders.push((path, depth + 1)),
                    FileKind::Directory => self.truncated = true,
                    FileKind::SymbolicLink | FileKind::Special => {}
                }
            }
        }
    }
}

fn artifact(path: String, metadata: &FileMetadata) -> wire::ArtifactInfo {
    let modified_at = abide_domain::time::Timestamp(metadata.modified_at.saturating_mul(1_000_000));
    wire::ArtifactInfo { path, size: metadata.size, modified_at: translate::time(modified_at) }
}

/// Streams a file in pieces. If the file shrinks meanwhile, the response ends early and the client detects it by the
/// length.
fn stream_file(file: File, first: u64, length: u64) -> impl futures_util::Stream<Item = io::Result<Bytes>> {
    futures_util::stream::unfold(Some((file, first, length)), |state| async move {
        let (mut file, at, remaining_bytes) = state.filter(|(_, _, remaining_bytes)| *remaining_bytes > 0)?;
        let read = blocking(move || {
            let mut piece =
                vec![0; usize::try_from(remaining_bytes).unwrap_or(READ_CHUNK_BYTES).min(READ_CHUNK_BYTES)];
            file.seek(SeekFrom::Start(at))?;
            let count = file.read(&mut piece)?;
            piece.truncate(count);
            Ok::<_, io::Error>((file, piece))
        });
        match read.await {
            Ok(Ok((file, piece))) if !piece.is_empty() => {
                let count = piece.len() as u64;
                Some((Ok(Bytes::from(piece)), Some((file, at + count, remaining_bytes - count))))
            }
            Ok(Ok(_)) => Some((Err(io::ErrorKind::UnexpectedEof.into()), None)),
            Ok(Err(error)) => Some((Err(error), None)),
            Err(_) => Some((Err(io::Error::other("the file could not be read")), None)),
        }
    })
}

/// Parses the `Range` header into start and length. Multiple ranges and units other than bytes are ignored, as HTTP
/// permits: the response is then the whole file.
fn parse_range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, HttpProblem> {
    let Some(header_value) = headers.get(header::RANGE).and_then(|range| range.to_str().ok()) else {
        return Ok(None);
    };
    let Some((first, last)) =
        header_value.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-'))
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
        return Err(HttpProblem::new(ProblemCode::RangeNotSatisfiable, detail));
    }
    Ok(Some((first, end - first)))
}

/// Returns the media type for types that are safe to display; all others are `application/octet-stream`.
fn media_type(path: &str) -> &'static str {
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

/// Returns a `Content-Disposition` that makes browsers download the file under its own name.
fn content_disposition(path: &str) -> String {
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, HttpProblem> {
    tokio::task::spawn_blocking(work).await.map_err(|_| HttpProblem::internal("the files could not be read"))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn temp_artifacts() -> (tempfile::TempDir, ArtifactFolder) {
        let temp_dir = tempfile::tempdir().unwrap();
        let workspace = temp_dir.path().join("work");
        fs::create_dir_all(workspace.join(".abide/artifacts/sub")).unwrap();
        fs::write(workspace.join(".abide/artifacts/report.txt"), "whole").unwrap();
        fs::write(workspace.join(".abide/artifacts/sub/a.png"), "png").unwrap();
        fs::write(temp_dir.path().join("secret"), "secret").unwrap();
        let workspace = workspace.to_str().unwrap().to_owned();
        (temp_dir, ArtifactFolder { workspace, artifacts: ".abide/artifacts".to_owned() })
    }

    #[test]
    fn files_are_read_and_listed() {
        let (_place, folder) = temp_artifacts();
        let (mut file, size) = folder.open_file("sub/a.png").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), size), ("png", 3));
        let mut paths: Vec<_> = folder.list(LISTING_LIMITS).files.into_iter().map(|file| file.path).collect();
        paths.sort();
        assert_eq!(paths, ["report.txt", "sub/a.png"]);
    }

    #[test]
    fn nothing_outside_the_folder_is_reached() {
        let (temp_dir, folder) = temp_artifacts();
        let artifacts = temp_dir.path().join("work/.abide/artifacts");
        symlink(temp_dir.path().join("secret"), artifacts.join("link")).unwrap();
        symlink(temp_dir.path(), artifacts.join("up")).unwrap();
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
            assert!(folder.open_file(path).is_none(), "{path:?}");
        }
        assert_eq!(folder.list(LISTING_LIMITS).files.len(), 2);
    }

    #[test]
    fn a_folder_that_is_a_link_is_not_entered() {
        let (temp_dir, folder) = temp_artifacts();
        let artifacts = temp_dir.path().join("work/.abide/artifacts");
        fs::remove_dir_all(&artifacts).unwrap();
        symlink(temp_dir.path(), &artifacts).unwrap();
        assert!(folder.open_file("secret").is_none());
        assert!(folder.list(LISTING_LIMITS).files.is_empty());
    }

    #[test]
    fn a_workspace_that_is_replaced_by_a_link_is_not_entered() {
        let (place, folder) = temp_artifacts();
        let (workspace, other) = (place.path().join("work"), place.path().join("other"));
        fs::create_dir_all(other.join(".abide/artifacts")).unwrap();
        fs::write(other.join(".abide/artifacts/report.txt"), "foreign").unwrap();
        fs::rename(&workspace, place.path().join("aside")).unwrap();
        symlink(&other, &workspace).unwrap();
        assert!(folder.open_file("report.txt").is_none());
        assert!(folder.list(LISTING_LIMITS).files.is_empty());
    }

    #[test]
    fn a_named_pipe_is_skipped_without_blocking() {
        let (temp_dir, folder) = temp_artifacts();
        let path = temp_dir.path().join("work/.abide/artifacts/pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        assert!(folder.open_file("pipe").is_none());
        assert_eq!(folder.list(LISTING_LIMITS).files.len(), 2);
    }

    /// SECURITY finding 19: empty folders were not counted, and the walk continued after the limit.
    #[test]
    fn a_listing_counts_folders_and_reports_truncation() {
        let (temp_dir, folder) = temp_artifacts();
        let artifacts = temp_dir.path().join("work/.abide/artifacts");
        assert!(!folder.list(LISTING_LIMITS).truncated);
        for number in 0..100 {
            fs::create_dir(artifacts.join(format!("empty-{number}"))).unwrap();
        }
        let few = ListingLimits { max_entries: 50, ..LISTING_LIMITS };
        assert!(folder.list(few).truncated);
        // 100 folders, `sub`, and two files.
        let enough = ListingLimits { max_entries: 103, ..LISTING_LIMITS };
        let listing = folder.list(enough);
        assert_eq!((listing.files.len(), listing.truncated), (2, false));
        assert!(folder.list(ListingLimits { max_time: Duration::ZERO, ..LISTING_LIMITS }).truncated);
    }

    #[test]
    fn a_listing_is_truncated_at_the_maximum_depth() {
        let (temp_dir, folder) = temp_artifacts();
        let mut deep = temp_dir.path().join("work/.abide/artifacts");
        for _ in 0..LISTING_LIMITS.max_depth {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "").unwrap();
        let listing = folder.list(LISTING_LIMITS);
        assert_eq!((listing.files.len(), listing.truncated), (3, false));
        fs::create_dir(deep.join("deeper")).unwrap();
        assert!(folder.list(LISTING_LIMITS).truncated);
    }

    #[test]
    fn names_of_any_bytes_do_no_harm() {
        use std::os::unix::ffi::OsStrExt;
        let (temp_dir, folder) = temp_artifacts();
        let artifacts = temp_dir.path().join("work/.abide/artifacts");
        fs::write(artifacts.join("new\nline"), "").unwrap();
        fs::write(artifacts.join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
        assert_eq!(folder.list(LISTING_LIMITS).files.len(), 3);
        assert!(folder.open_file("new\nline").is_some());
    }

    #[test]
    fn ranges_are_read_as_http_means_them() {
        let with = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, text.parse().unwrap());
            parse_range(&headers, 10).map_err(|problem| problem.code)
        };
        assert_eq!(with("bytes=0-3"), Ok(Some((0, 4))));
        assert_eq!(with("bytes=8-100"), Ok(Some((8, 2))));
        assert_eq!(with("bytes=4-"), Ok(Some((4, 6))));
        assert_eq!(with("bytes=-3"), Ok(Some((7, 3))));
        assert_eq!(with("bytes=-100"), Ok(Some((0, 10))));
        for whole in ["bytes=0-1,4-5", "lines=1-2", "bytes=x-", "bytes=5-2", "bytes"] {
            assert_eq!(with(whole), Ok(None), "{whole}");
        }
        assert_eq!(with("bytes=10-"), Err(ProblemCode::RangeNotSatisfiable));
        assert_eq!(with("bytes=-0"), Err(ProblemCode::RangeNotSatisfiable));
    }
}
