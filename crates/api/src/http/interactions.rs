//! Questions: the inbox, a run's history of them, and answers.

use abide_daemon::Outcome;
use abide_domain::{
    id::InteractionId,
    reply::{Answerer, Reply},
};
use abide_wire::{interaction as wire, service};
use axum::{
    Json,
    extract::{Extension, State},
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    Interface,
    body::{JsonBody, Path, Query, check_length, limit},
    permissions,
    person::Person,
    problem::Problem,
    runs::{Part, find, run_id},
    translate,
};
use crate::access::Principal;

/// Which questions are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Inbox {
    /// Only `open` ones are listed across runs; those of one run are all at `/v1/runs/{run_id}/interactions`.
    #[param(inline)]
    state: Option<Listed>,
    /// The `next_cursor` of the page before; the first page unless given.
    cursor: Option<String>,
    /// How many at the most; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Questions that are listed across runs.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Listed {
    /// Those that can be answered.
    Open,
}

/// The inbox: every question that can be answered, the oldest first.
#[utoipa::path(
    get, path = "/v1/interactions", tag = "interactions", operation_id = "list_open_interactions",
    params(Inbox),
    responses(
        (status = 200, description = "A page of open questions.", body = service::Page<wire::Interaction>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`"),
    ),
)]
pub(super) async fn inbox(
    State(interface): State<Interface>,
    Query(inbox): Query<Inbox>,
) -> Result<Json<service::Page<wire::Interaction>>, Problem> {
    let Inbox { state: None | Some(Listed::Open), cursor, limit: most } = inbox;
    let page = abide_ports::store::Page { cursor, limit: limit(most)? };
    let listing = interface.daemon().store().open_interactions(page).await?;
    let items = listing.items.iter().map(translate::interaction).collect();
    Ok(Json(service::Page { items, next_cursor: listing.next_cursor }))
}

/// Lists a run's questions, the first first.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/interactions", tag = "interactions", operation_id = "list_interactions",
    params(("run_id" = String, Path, description = "The run."), Part),
    responses(
        (status = 200, description = "A page of the run's questions.", body = service::Page<wire::Interaction>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`"),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn of_run(
    State(interface): State<Interface>,
    Path(id): Path<String>,
    Query(part): Query<Part>,
) -> Result<Json<service::Page<wire::Interaction>>, Problem> {
    let run = run_id(&id)?;
    let listing = interface.daemon().store().interactions_of(run, part.page()?).await?;
    if listing.items.is_empty() {
        find(&interface, run).await?;
    }
    let items = listing.items.iter().map(translate::interaction).collect();
    Ok(Json(service::Page { items, next_cursor: listing.next_cursor }))
}

/// Answers a question. The first answer counts.
///
/// An approval (`asked_by` is `approval`, or `kind` is `risk_ack`) needs the permission `approve`, any other question
/// `answer`.
#[utoipa::path(
    post, path = "/v1/interactions/{interaction_id}/reply", tag = "interactions", operation_id = "reply",
    params(
        ("interaction_id" = String, Path, description = "The question."),
        ("Abide-Person" = Option<String>, Header, description = "Who answers, for the ledger.", min_length = 1, max_length = 100),
    ),
    request_body = wire::Reply,
    responses(
        (status = 200, description = "The answer counts, or did so already.", body = wire::Replied),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
        (status = 404, description = "`INTERACTION_NOT_FOUND`"),
        (status = 409, description = "`STALE_INTERACTION`: somebody else was first, or the question is closed; `IDEMPOTENCY_CONFLICT`: the same key came with another text"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn reply(
    State(interface): State<Interface>,
    Path(id): Path<String>,
    Extension(principal): Extension<Principal>,
    Person(by): Person,
    body: JsonBody<wire::Reply>,
) -> Result<Json<wire::Replied>, Problem> {
    let wire::Reply { text, idempotency_key } = body.parsed;
    check_length("text", &text, 0, 1_000_000)?;
    check_length("idempotency_key", idempotency_key.as_deref().unwrap_or("-"), 1, 200)?;
    let shown: String = id.chars().take(100).collect();
    let interaction_id: InteractionId = id.parse().map_err(|_| Problem::no_interaction(&shown))?;
    let daemon = interface.daemon();
    let interaction = daemon.store().interaction(interaction_id).await?;
    let interaction = interaction.ok_or_else(|| Problem::no_interaction(&shown))?;
    permissions::require(&principal, permissions::needed_for(&interaction))?;
    let reply = Reply { interaction_id, text, by: Answerer::Person(by), idempotency_key };
    let resolution = match daemon.reply(reply).await? {
        Outcome::Changed(_) => wire::ReplyResolution::Accepted,
        Outcome::Absorbed | Outcome::Repeated(_) => wire::ReplyResolution::Idempotent,
    };
    Ok(Json(wire::Replied { resolution }))
}
