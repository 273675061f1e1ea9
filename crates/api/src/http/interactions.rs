//! Routes for questions: the inbox, the history of a run, and replies.

use std::io::{self, Cursor, Read};

use abide_daemon::RequestOutcome;
use abide_domain::{
    id::InteractionId,
    interaction::InteractionState,
    reply::{InteractionReply, ReplyAuthor},
};
use abide_ports::contents::ContentError;
use abide_wire::{interaction as wire, service};
use axum::{
    Json,
    body::Body,
    extract::{Extension, State},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::Stream;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    HttpState,
    body::{JsonBody, PathParams, QueryParams, check_length},
    entry_pages,
    guard::RequestCredential,
    permissions,
    problem::{HttpProblem, ProblemCode},
    request_person::RequestPerson,
    runs::{PageQuery, load_run, page_of, parse_run_id},
    translate,
};
use crate::access::Principal;

/// Which questions are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct InteractionsQuery {
    /// Only `open` is supported. `/v1/runs/{run_id}/interactions` lists all questions of a run.
    #[param(inline)]
    state: Option<InteractionFilter>,
    /// The `next_cursor` of the previous page; default: the first page.
    cursor: Option<String>,
    /// Maximum number of items; default 100. A page ends earlier at 1 MiB.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Questions that are listed across runs.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum InteractionFilter {
    /// Those that can be answered.
    Open,
}

/// Lists the open questions of all runs, oldest first.
#[utoipa::path(
    get, path = "/v1/interactions", tag = "interactions", operation_id = "list_open_interactions",
    params(InteractionsQuery),
    responses(
        (status = 200, description = "A page of open questions.", body = service::ListResponse<wire::InteractionView>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`"),
    ),
)]
pub(super) async fn inbox(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    QueryParams(inbox): QueryParams<InteractionsQuery>,
) -> Result<Response, HttpProblem> {
    let InteractionsQuery { state: None | Some(InteractionFilter::Open), cursor, limit } = inbox;
    let page = page_of(cursor, limit)?;
    entry_pages::json_response(&interface, &credential, || async {
        let listing = interface.daemon().store().open_interactions(page.clone()).await?;
        let items: Vec<_> = listing.items.iter().map(translate::interaction).collect();
        Ok(service::ListResponse { items, next_cursor: listing.next_cursor })
    })
    .await
}

/// Lists the questions of a run, oldest first.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/interactions", tag = "interactions", operation_id = "list_interactions",
    params(("run_id" = String, Path, description = "The run."), PageQuery),
    responses(
        (status = 200, description = "A page of questions.", body = service::ListResponse<wire::InteractionView>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`"),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn of_run(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    PathParams(id): PathParams<String>,
    QueryParams(part): QueryParams<PageQuery>,
) -> Result<Response, HttpProblem> {
    let (run, page) = (parse_run_id(&id)?, part.page()?);
    entry_pages::json_response(&interface, &credential, || async {
        let listing = interface.daemon().store().interactions_of(run, page.clone()).await?;
        if listing.items.is_empty() {
            load_run(&interface, run).await?;
        }
        let items: Vec<_> = listing.items.iter().map(translate::interaction).collect();
        Ok(service::ListResponse { items, next_cursor: listing.next_cursor })
    })
    .await
}

/// Answers a question. The first answer is accepted.
///
/// An approval (`asked_by` is `approval`, or `kind` is `risk_ack`) needs the permission `approve`, any other question
/// `answer`.
#[utoipa::path(
    post, path = "/v1/interactions/{interaction_id}/reply", tag = "interactions", operation_id = "reply",
    params(
        ("interaction_id" = String, Path, description = "The question."),
        ("Abide-Person" = Option<String>, Header, description = "Name of the person who answers, for the ledger.", min_length = 1, max_length = 100),
    ),
    request_body = wire::ReplyRequest,
    responses(
        (status = 200, description = "The answer is accepted, or was accepted before.", body = wire::ReplyResponse),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
        (status = 404, description = "`INTERACTION_NOT_FOUND`"),
        (status = 409, description = "`STALE_INTERACTION`: the question was answered before, or is closed; `APPROVAL_NOT_SHOWN`: the prompt does not show all of the content, and the yes does not name the digits at the end of the content; `IDEMPOTENCY_CONFLICT`: the same key was used with another text"),
        (status = 422, description = "`APPROVAL_UNCLEAR`: the answer to an approval is neither a yes nor a no"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn reply(
    State(interface): State<HttpState>,
    PathParams(id): PathParams<String>,
    Extension(principal): Extension<Principal>,
    RequestPerson(by): RequestPerson,
    body: JsonBody<wire::ReplyRequest>,
) -> Result<Json<wire::ReplyResponse>, HttpProblem> {
    let wire::ReplyRequest { text, idempotency_key } = body.parsed;
    check_length("text", &text, 0, 1_000_000)?;
    check_length("idempotency_key", idempotency_key.as_deref().unwrap_or("-"), 1, 200)?;
    let id_excerpt: String = id.chars().take(100).collect();
    let interaction_id: InteractionId =
        id.parse().map_err(|_| HttpProblem::interaction_not_found(&id_excerpt))?;
    let daemon = interface.daemon();
    let asked = daemon.question(interaction_id).await?;
    let asked = asked.ok_or_else(|| HttpProblem::interaction_not_found(&id_excerpt))?;
    permissions::require(&principal, permissions::needed_for(&asked.interaction))?;
    let is_approval = asked.interaction.is_approval();
    let reply = InteractionReply { interaction_id, text, by: ReplyAuthor::Person(by), idempotency_key };
    let resolution = match daemon.reply(reply, asked).await? {
        RequestOutcome::Changed(_) => wire::ReplyResolution::Accepted,
        RequestOutcome::Absorbed | RequestOutcome::Repeated(_) => wire::ReplyResolution::Idempotent,
    };
    // Only the reply to an approval has a verdict. Other replies are acknowledged without a second read.
    let result = match is_approval {
        true => daemon.store().interaction(interaction_id).await?,
        false => None,
    };
    let verdict = result.and_then(|result| match result.state {
        InteractionState::Answered(resolution) => resolution.verdict.map(translate::verdict),
        InteractionState::Open | InteractionState::Closed { .. } => None,
    });
    Ok(Json(wire::ReplyResponse { resolution, verdict }))
}

/// Reads the complete content of a question.
///
/// Returns the complete text of a question that is too long for its prompt, or the prompt of any other question. The
/// text of such an approval ends with a line that states the answer which approves it. The SHA-256 does not include
/// that line and the empty line before it.
#[utoipa::path(
    get, path = "/v1/interactions/{interaction_id}/content", tag = "interactions", operation_id = "read_content",
    params(("interaction_id" = String, Path, description = "The question.")),
    responses(
        (status = 200, description = "The text, in UTF-8.", body = String, content_type = "text/plain"),
        (status = 404, description = "`INTERACTION_NOT_FOUND`"),
        (status = 410, description = "`CONTENT_GONE`: the run has ended, and its private files were deleted"),
    ),
)]
pub(super) async fn content(
    State(interface): State<HttpState>,
    PathParams(id): PathParams<String>,
) -> Result<Response, HttpProblem> {
    let id_excerpt: String = id.chars().take(100).collect();
    let interaction_id: InteractionId =
        id.parse().map_err(|_| HttpProblem::interaction_not_found(&id_excerpt))?;
    let stored = interface.daemon().store().interaction(interaction_id).await?;
    let interaction = stored.ok_or_else(|| HttpProblem::interaction_not_found(&id_excerpt))?;
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
    ];
    let Some(hidden) = &interaction.question.hidden else {
        return Ok((headers, interaction.question.prompt).into_response());
    };
    let (contents, run, sha256) = (interface.daemon().contents(), interaction.run_id, hidden.sha256.clone());
    let opened = tokio::task::spawn_blocking(move || contents.open(run, &sha256)).await;
    let reader = opened.map_err(|_| HttpProblem::internal("the content could not be read"))?;
    let reader = reader.map_err(|error| match error {
        ContentError::Gone => HttpProblem::new(
            ProblemCode::ContentGone,
            "the content was removed some time after the run had ended; the question has its beginning",
        ),
        ContentError::Damaged | ContentError::Unreadable(_) => HttpProblem::internal(error.to_string()),
    })?;
    let end = match interaction.is_approval() {
        true => format!("\n\nTo approve all of this, answer: yes {}\n", hidden.approval_digits()),
        false => String::new(),
    };
    let reader: Box<dyn Read + Send> = Box::new(reader.chain(Cursor::new(end.into_bytes())));
    Ok((headers, Body::from_stream(stream_content(reader))).into_response())
}

/// Size of the pieces in which content is streamed, in bytes.
const STREAM_CHUNK_BYTES: usize = 64 << 10;

fn stream_content(reader: Box<dyn Read + Send>) -> impl Stream<Item = io::Result<Vec<u8>>> {
    futures_util::stream::try_unfold(reader, |mut reader| async move {
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = Vec::with_capacity(STREAM_CHUNK_BYTES);
            reader.by_ref().take(STREAM_CHUNK_BYTES as u64).read_to_end(&mut piece).map(|_| (piece, reader))
        });
        let (piece, reader) = read.await.map_err(io::Error::other)??;
        Ok((!piece.is_empty()).then_some((piece, reader)))
    })
}
