//! Routes for runs: create, list, show, interrupt and cancel; and the ledger of their turns.

use abide_daemon::{RequestError, RequestOutcome};
use abide_domain::{
    event::{IdempotencyClaim, NewRun},
    id::RunId,
    inbound::{InboundMessage, MessageKey},
    refused::RequestRefused,
    run::Run,
};
use abide_ports::{engine::IsolationMode, store::PageRequest, workspace::RunSkill};
use abide_wire::{access::Permission, run as wire, service};
use axum::{
    Json,
    extract::{Extension, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use super::{
    HttpState,
    body::{JsonBody, PathParams, QueryParams, check_length, validate_limit},
    entry_pages,
    guard::RequestCredential,
    permissions::require,
    problem::{HttpProblem, ProblemCode},
    request_person::RequestPerson,
    translate, turn_exits,
};
use crate::access::Principal;

/// Channel name of all messages received over HTTP.
pub(super) const CHANNEL: &str = "api";

/// Which runs are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunsQuery {
    /// Lists only runs with this status.
    #[param(inline)]
    status: Option<wire::RunStatusValue>,
    /// The `next_cursor` of the previous page; default: the first page.
    cursor: Option<String>,
    /// Maximum number of items; default 100. A page ends earlier at 1 MiB.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Which part of a list is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// The `next_cursor` of the previous page; default: the first page.
    cursor: Option<String>,
    /// Maximum number of items; default 100. A page ends earlier at 1 MiB.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

impl PageQuery {
    pub(super) fn page(self) -> Result<PageRequest, HttpProblem> {
        page_of(self.cursor, self.limit)
    }
}

/// Validates cursor and limit of a page.
pub(super) fn page_of(cursor: Option<String>, most: Option<u32>) -> Result<PageRequest, HttpProblem> {
    Ok(PageRequest {
        cursor,
        ..PageRequest::first(validate_limit(most)?).with_max_bytes(entry_pages::MAX_PAGE_BYTES)
    })
}

/// Starts a run.
///
/// A repeated request with the same `Idempotency-Key` and body returns the same run. Without the permission `read`, it
/// returns the run as it was created: `queued`, without its progress, result, error and questions.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs", operation_id = "create_run",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "1 to 200 visible ASCII characters. A repeated request with the same key creates no second run; keys do not expire.",
        min_length = 1, max_length = 200, pattern = "^[!-~]+$")),
    request_body = wire::CreateRunRequest,
    responses(
        (status = 201, description = "The run was created.", body = wire::RunView, headers(("Location" = String, description = "Where the run is."))),
        (status = 200, description = "The request was accepted before. This is its run.", body = wire::RunView),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `UNKNOWN_ENGINE`, `WORKSPACE_UNUSABLE`"),
        (status = 409, description = "`IDEMPOTENCY_CONFLICT`: the key was used for another request"),
        (status = 507, description = "`RESOURCE_PRESSURE`: too little disk space is free in the home or the workspace; `STORE_FULL`"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn create(
    State(interface): State<HttpState>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
    body: JsonBody<wire::CreateRunRequest>,
) -> Result<Response, HttpProblem> {
    let JsonBody { parsed: new, raw } = body;
    validate_request(&new)?;
    let daemon = interface.daemon();
    let Some(engine) = daemon.catalogue().engine(&new.engine) else {
        let engine_names = daemon.catalogue().names().join(", ");
        return Err(HttpProblem::new(
            ProblemCode::UnknownEngine,
            format!("there is no enabled engine of that name; the engines are {engine_names}"),
        ));
    };
    check_isolation(&principal, new.options.isolation, engine.installation.isolation)?;
    let idempotency =
        idempotency_key(&headers)?.map(|key| IdempotencyClaim { key, fingerprint: fingerprint(&raw) });
    let run_id = RunId(daemon.stamp().id_seed);
    let workspace = match &new.workspace {
        Some(requested) => resolve_workspace(requested.clone()).await?,
        None => daemon.own_workspace(run_id),
    };
    let (settings, text) = translate::settings(new, workspace);
    let message = InboundMessage { key: new_message_key(&interface), text };
    let new =
        NewRun { run_id, settings, message, idempotency, rules: abide_domain::run::CURRENT_RULES_VERSION };
    match daemon.create(new).await? {
        RequestOutcome::Changed(run) => {
            let location = [(header::LOCATION, format!("/v1/runs/{run_id}"))];
            Ok((StatusCode::CREATED, location, Json(run_view(&interface, &run).await)).into_response())
        }
        RequestOutcome::Repeated(run_id) => {
            let view = run_view(&interface, &load_run(&interface, run_id).await?).await;
            let may_read = principal.permissions.includes(Permission::Read);
            let view = if may_read { view } else { translate::run_at_creation(view) };
            Ok(Json(view).into_response())
        }
        RequestOutcome::Absorbed => Err(HttpProblem::internal(
            "the new run was reported as an old one, which is a bug; please report it",
        )),
    }
}

/// Lists runs, newest first.
#[utoipa::path(
    get, path = "/v1/runs", tag = "runs", operation_id = "list_runs",
    params(RunsQuery),
    responses(
        (status = 200, description = "A page of runs.", body = service::ListResponse<wire::RunView>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`"),
    ),
)]
pub(super) async fn list(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    QueryParams(runs): QueryParams<RunsQuery>,
) -> Result<Response, HttpProblem> {
    let page = page_of(runs.cursor, runs.limit)?;
    let status = runs.status.map(translate::status);
    entry_pages::json_response(&interface, &credential, || async {
        let listing = interface.daemon().store().runs(status, page.clone()).await?;
        let mut items = Vec::with_capacity(listing.items.len());
        for run in &listing.items {
            items.push(run_view(&interface, run).await);
        }
        Ok(service::ListResponse { items, next_cursor: listing.next_cursor })
    })
    .await
}

/// Shows a run.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}", tag = "runs", operation_id = "show_run",
    params(("run_id" = String, Path, description = "The run.")),
    responses(
        (status = 200, description = "The run.", body = wire::RunView),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn show(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    PathParams(id): PathParams<String>,
) -> Result<Response, HttpProblem> {
    let run = parse_run_id(&id)?;
    entry_pages::json_response(&interface, &credential, || async {
        Ok(run_view(&interface, &load_run(&interface, run).await?).await)
    })
    .await
}

/// Lists the turns of a run, oldest first.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/turns", tag = "runs", operation_id = "list_turns",
    params(("run_id" = String, Path, description = "The run."), PageQuery),
    responses(
        (status = 200, description = "A page of turns.", body = service::ListResponse<wire::TurnView>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`, `INVALID_CURSOR`"),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn turns(
    State(interface): State<HttpState>,
    Extension(credential): Extension<RequestCredential>,
    PathParams(id): PathParams<String>,
    QueryParams(part): QueryParams<PageQuery>,
) -> Result<Response, HttpProblem> {
    let (run, page) = (parse_run_id(&id)?, part.page()?);
    entry_pages::json_response(&interface, &credential, || async {
        let listing = interface.daemon().store().turns_of(run, page.clone()).await?;
        if listing.items.is_empty() {
            load_run(&interface, run).await?;
        }
        let mut turns = listing.items;
        turn_exits::add_missing_exits(interface.daemon().store(), run, &mut turns).await?;
        let items: Vec<_> = turns.iter().map(translate::turn).collect();
        Ok(service::ListResponse { items, next_cursor: listing.next_cursor })
    })
    .await
}

/// Interrupts the running turn.
///
/// The run then waits for a person to decide how it continues. Without a running turn, the request has no effect.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/interrupt", tag = "runs", operation_id = "interrupt_run",
    params(
        ("run_id" = String, Path, description = "The run."),
        ("Abide-Person" = Option<String>, Header, description = "Name of the person who asks, for the ledger.", min_length = 1, max_length = 100),
    ),
    responses(
        (status = 400, description = "`INVALID_REQUEST`"),
        (status = 200, description = "Whether a turn was running.", body = wire::AcceptedResponse),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn interrupt(
    State(interface): State<HttpState>,
    PathParams(id): PathParams<String>,
    RequestPerson(by): RequestPerson,
) -> Result<Json<wire::AcceptedResponse>, HttpProblem> {
    accepted_response(&id, interface.daemon().interrupt(parse_run_id(&id)?, &by).await)
}

/// Cancels a run.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/cancel", tag = "runs", operation_id = "cancel_run",
    params(
        ("run_id" = String, Path, description = "The run."),
        ("Abide-Person" = Option<String>, Header, description = "Name of the person who asks, for the ledger.", min_length = 1, max_length = 100),
    ),
    responses(
        (status = 400, description = "`INVALID_REQUEST`"),
        (status = 200, description = "Whether the run was canceled; false if it had ended before.", body = wire::AcceptedResponse),
        (status = 404, description = "`RUN_NOT_FOUND`"),
    ),
)]
pub(super) async fn cancel(
    State(interface): State<HttpState>,
    PathParams(id): PathParams<String>,
    RequestPerson(by): RequestPerson,
) -> Result<Json<wire::AcceptedResponse>, HttpProblem> {
    accepted_response(&id, interface.daemon().cancel(parse_run_id(&id)?, &by).await)
}

fn accepted_response(
    id: &str,
    outcome: Result<RequestOutcome, RequestError>,
) -> Result<Json<wire::AcceptedResponse>, HttpProblem> {
    let accepted = match outcome {
        // A repeated request succeeds: the first one is already in progress.
        Ok(RequestOutcome::Changed(_) | RequestOutcome::Absorbed | RequestOutcome::Repeated(_)) => true,
        Err(RequestError::Refused(
            RequestRefused::RunFinished { .. } | RequestRefused::NothingToInterrupt { .. },
        )) => false,
        Err(RequestError::Refused(RequestRefused::NoSuchRun)) => return Err(HttpProblem::run_not_found(id)),
        Err(error) => return Err(error.into()),
    };
    Ok(Json(wire::AcceptedResponse { accepted }))
}

/// Parses the run id of a path.
pub(super) fn parse_run_id(text: &str) -> Result<RunId, HttpProblem> {
    let id_excerpt: String = text.chars().take(100).collect();
    text.parse().map_err(|_| HttpProblem::run_not_found(&id_excerpt))
}

/// Loads a run, or returns the "not found" problem.
pub(super) async fn load_run(interface: &HttpState, run: RunId) -> Result<Run, HttpProblem> {
    interface.daemon().store().run(run).await?.ok_or_else(|| HttpProblem::run_not_found(&run.to_string()))
}

/// Converts a run to its wire view, with the values that only the daemon has.
pub(super) async fn run_view(interface: &HttpState, run: &Run) -> wire::RunView {
    let daemon = interface.daemon();
    let mut view = translate::run(run, daemon.queue_position(run.run_id), daemon.stalled_since(run).await);
    if view.status == wire::RunStatusValue::Queued {
        let shortage = daemon.shortage(Some(&run.settings.workspace)).await;
        view.blocked_reason = shortage.map(|shortage| shortage.to_string());
    }
    view
}

/// Generates a key for a message without one.
pub(super) fn new_message_key(interface: &HttpState) -> MessageKey {
    let message_id = format!("msg_{}", interface.daemon().stamp().id_seed);
    MessageKey { channel: CHANNEL.to_owned(), message_id }
}

/// Checks lengths and ranges that the schema states and the types do not.
fn validate_request(new: &wire::CreateRunRequest) -> Result<(), HttpProblem> {
    check_length("engine", &new.engine, 1, 100)?;
    check_length("prompt", &new.prompt, 1, 1_000_000)?;
    check_length("workspace", new.workspace.as_deref().unwrap_or_default(), 0, 4096)?;
    check_length("conversation_ref", new.conversation_ref.as_deref().unwrap_or_default(), 0, 1000)?;
    check_length("skill", new.skill.as_deref().unwrap_or_default(), 0, 4096)?;
    let options = &new.options;
    check_length("options.model", options.model.as_deref().unwrap_or("-"), 1, 200)?;
    // The model becomes a command-line argument of the engine and must not look like an option.
    if options.model.as_ref().is_some_and(|model| model.starts_with('-')) {
        return Err(HttpProblem::invalid(
            "options.model must not begin with a dash, because it would be parsed as an option",
        ));
    }
    let is_skill = |skill: &String| !skill.starts_with('-') && RunSkill::new(skill, "skills").is_some();
    if !new.skill.as_ref().is_none_or(is_skill) {
        return Err(HttpProblem::invalid(
            "skill must be a folder whose path does not begin with a dash and whose name begins with neither a dot nor a \
             dash, without control characters and backticks",
        ));
    }
    for (name, seconds) in
        [("session_timeout_sec", options.session_timeout_sec), ("turn_timeout_sec", options.turn_timeout_sec)]
    {
        if seconds == Some(0) {
            return Err(HttpProblem::invalid(format!("options.{name} must be at least 1 second")));
        }
    }
    Ok(())
}

/// Rejects an isolation that may protect less than the configured one, unless the client has `admin`: an agent without
/// isolation can read the owner's token.
fn check_isolation(
    principal: &Principal,
    requested: Option<wire::IsolationValue>,
    configured: IsolationMode,
) -> Result<(), HttpProblem> {
    let requested =
        requested.map(translate::isolation).filter(|requested| requested.may_be_weaker_than(configured));
    let Some(requested) = requested else { return Ok(()) };
    require(principal, Permission::Admin).map_err(|problem| HttpProblem {
        detail: format!(
            "options.isolation {:?} may protect less than the configured {:?}: {}",
            requested.name(),
            configured.name(),
            problem.detail
        ),
        ..problem
    })
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, HttpProblem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(key) = values.next() else { return Ok(None) };
    let fits = |key: &&str| (1..=200).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    let key = key.to_str().ok().filter(fits).filter(|_| values.next().is_none());
    let advice = "Idempotency-Key must be given once, with 1 to 200 visible ASCII characters";
    key.map(|key| Some(key.to_owned())).ok_or_else(|| HttpProblem::invalid(advice))
}

/// Digest of the request, independent of the order of its fields.
fn fingerprint(body: &Value) -> String {
    let mut text = String::new();
    write_canonical(body, &mut text);
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            text.push('{');
            for (key, value) in sorted {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string())
        }
    }
}

/// Returns the canonical path of the workspace if a run can work there. Links are resolved only here, so that a link
/// changed later cannot redirect the run.
async fn resolve_workspace(workspace: String) -> Result<String, HttpProblem> {
    let unusable = |reason: &str| {
        HttpProblem::new(
            ProblemCode::WorkspaceUnusable,
            format!(
                "{reason}; give the absolute path of a directory on the daemon's machine, or leave it out"
            ),
        )
    };
    if !workspace.starts_with('/') {
        return Err(unusable("the workspace must be an absolute path"));
    }
    let resolution = tokio::task::spawn_blocking(move || {
        let resolved = std::fs::canonicalize(&workspace).ok().filter(|path| path.is_dir())?;
        Some(resolved.into_os_string().into_string())
    });
    let directory = resolution.await.map_err(|_| HttpProblem::internal("the workspace could not be read"))?;
    let resolved = directory.ok_or_else(|| unusable("the workspace does not exist or is not a directory"))?;
    resolved.map_err(|_| unusable("the workspace resolves to a path that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_order_of_fields_does_not_make_another_request() {
        let one: Value = serde_json::from_str(r#"{"a":{"x":1,"y":[1,2]},"b":"t"}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{ "b":"t", "a":{"y":[1,2],"x":1} }"#).unwrap();
        assert_eq!(fingerprint(&one), fingerprint(&other));
        for different in
            [json!({ "a": { "x": 1, "y": [2, 1] }, "b": "t" }), json!({ "a": {}, "b": "t" }), json!({})]
        {
            assert_ne!(fingerprint(&one), fingerprint(&different), "{different}");
        }
    }

    #[test]
    fn text_and_structure_have_different_fingerprints() {
        assert_ne!(
            fingerprint(&json!({ "a": "1\",\"b\":\"2" })),
            fingerprint(&json!({ "a": "1", "b": "2" }))
        );
    }

    #[test]
    fn a_key_is_given_once_and_visibly() {
        let with = |keys: &[&str]| {
            let mut headers = HeaderMap::new();
            for key in keys {
                headers.append("idempotency-key", key.parse().unwrap());
            }
            idempotency_key(&headers)
        };
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&["k-1"]), Ok(Some("k-1".to_owned())));
        for wrong in [&["", ""][..], &["a", "a"], &["a b"], &["\u{e9}"], &["x".repeat(201).as_str()]] {
            assert!(with(wrong).is_err(), "{wrong:?}");
        }
    }
}
