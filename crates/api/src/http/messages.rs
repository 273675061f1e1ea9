//! Routes for messages to a run, and the ledger of inbound messages.

use abide_daemon::RequestOutcome;
use abide_domain::inbound::{InboundMessage, MessageKey};
use abide_wire::message as wire;
use axum::{Json, extract::State, http::StatusCode};

use super::{
    HttpState,
    body::{JsonBody, PathParams, check_length},
    problem::{HttpProblem, ProblemCode},
    runs::{CHANNEL, new_message_key, parse_run_id},
    translate,
};

/// Sends a message to a run.
///
/// A message with a known `message_id` is not accepted again.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/messages", tag = "messages", operation_id = "send_message",
    params(("run_id" = String, Path, description = "The run.")),
    request_body = wire::SendMessageRequest,
    responses(
        (status = 202, description = "The message is stored durably.", body = wire::SendMessageResponse),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
        (status = 404, description = "`RUN_NOT_FOUND`"),
        (status = 409, description = "`RUN_FINISHED`: the run has ended; `INBOX_FULL`; `IDEMPOTENCY_CONFLICT`: the message id was used for another run"),
        (status = 507, description = "`RESOURCE_PRESSURE`: too little disk space is free in the home or the workspace; `STORE_FULL`"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn send(
    State(interface): State<HttpState>,
    PathParams(id): PathParams<String>,
    body: JsonBody<wire::SendMessageRequest>,
) -> Result<(StatusCode, Json<wire::SendMessageResponse>), HttpProblem> {
    let wire::SendMessageRequest { message_id, text, on_busy } = body.parsed;
    check_length("message_id", message_id.as_deref().unwrap_or("-"), 1, 200)?;
    check_length("text", &text, 1, 1_000_000)?;
    let run = parse_run_id(&id)?;
    let key = match message_id {
        Some(message_id) => MessageKey { channel: CHANNEL.to_owned(), message_id },
        None => new_message_key(&interface),
    };
    let message = InboundMessage { key: key.clone(), text };
    let daemon = interface.daemon();
    let duplicate = match daemon.message(run, message, on_busy.map(translate::on_busy)).await? {
        RequestOutcome::Changed(_) | RequestOutcome::Absorbed => false,
        RequestOutcome::Repeated(holder) if holder == run => true,
        RequestOutcome::Repeated(holder) => {
            return Err(HttpProblem::new(
                ProblemCode::IdempotencyConflict,
                format!("a message with that id was sent to run {holder}; use a new id for a new message"),
            ));
        }
    };
    let inbound = daemon.store().inbound(key.clone()).await?;
    let inbound =
        inbound.ok_or_else(|| HttpProblem::internal("the message was accepted but has no record"))?;
    let execution_status = translate::inbound_status(inbound.execution_status);
    let response = wire::SendMessageResponse { message_id: key.message_id, execution_status, duplicate };
    Ok((StatusCode::ACCEPTED, Json(response)))
}

/// Reads an entry of the inbound ledger.
#[utoipa::path(
    get, path = "/v1/inbound/{channel}/{message_id}", tag = "messages", operation_id = "show_inbound",
    params(
        ("channel" = String, Path, description = "The channel that received the message; `api` for HTTP."),
        ("message_id" = String, Path, description = "The id of the message within its channel."),
    ),
    responses(
        (status = 200, description = "The entry.", body = wire::InboundView),
        (status = 404, description = "`MESSAGE_NOT_FOUND`"),
    ),
)]
pub(super) async fn inbound(
    State(interface): State<HttpState>,
    PathParams((channel, message_id)): PathParams<(String, String)>,
) -> Result<Json<wire::InboundView>, HttpProblem> {
    let unknown = || {
        HttpProblem::new(ProblemCode::MessageNotFound, "there is no message with that id from that channel")
    };
    if channel.contains('\0') || message_id.contains('\0') {
        return Err(unknown());
    }
    let inbound = interface.daemon().store().inbound(MessageKey { channel, message_id }).await?;
    Ok(Json(translate::inbound(&inbound.ok_or_else(unknown)?)))
}
