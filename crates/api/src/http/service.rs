//! Routes for the daemon: health, readiness, status, metrics and stop.

use abide_daemon::{ActivityBeforeStop, StoppedRun};
use abide_domain::run::RunStatus;
use abide_observe::metrics::{CONTENT_TYPE, STATUSES};
use abide_terminal::{RuntimeStats, TerminalCall};
use abide_wire::service as wire;
use axum::{Json, extract::State, http::header, response::IntoResponse};
use tokio::sync::oneshot;

use super::{
    HttpState, StopMode,
    body::OptionalBody,
    gauges,
    problem::{HttpProblem, ProblemCode},
    translate,
};

/// Reports that the daemon is alive. Needs no token.
#[utoipa::path(
    get, path = "/healthz", tag = "service", operation_id = "health",
    responses((status = 200, description = "The daemon is alive.", body = wire::HealthResponse)),
)]
pub(super) async fn health() -> Json<wire::HealthResponse> {
    Json(wire::HealthResponse { status: "ok".to_owned(), resource_pressure: None })
}

/// Reports whether the recovery at start-up is complete.
#[utoipa::path(
    get, path = "/readyz", tag = "service", operation_id = "ready",
    responses(
        (status = 200, description = "The recovery is complete.", body = wire::HealthResponse),
        (status = 503, description = "`NOT_READY`, `STORE_GONE`, `STORE_IN_USE`"),
    ),
)]
pub(super) async fn ready(
    State(interface): State<HttpState>,
) -> Result<Json<wire::HealthResponse>, HttpProblem> {
    interface.daemon().store().health()?;
    if interface.daemon().is_ready() {
        let resource_pressure = interface.daemon().shortage(None).await.map(|shortage| shortage.to_string());
        Ok(Json(wire::HealthResponse { status: "ready".to_owned(), resource_pressure }))
    } else {
        Err(HttpProblem::new(
            ProblemCode::NotReady,
            "the daemon is still recovering from the previous shutdown; try again",
        ))
    }
}

/// Returns the metrics of the daemon.
#[utoipa::path(
    get, path = "/metrics", tag = "service", operation_id = "metrics",
    responses((status = 200, description = "Metrics in the OpenMetrics text format.", body = String,
        content_type = "application/openmetrics-text")),
)]
pub(super) async fn metrics(State(interface): State<HttpState>) -> Result<impl IntoResponse, HttpProblem> {
    let text = interface.0.metrics.encode(&gauges::read(interface.daemon()).await?);
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text))
}

/// Returns the status of the daemon.
#[utoipa::path(
    get, path = "/v1/status", tag = "service", operation_id = "status",
    responses((status = 200, description = "The status of the daemon.", body = wire::DaemonStatus)),
)]
pub(super) async fn status(
    State(interface): State<HttpState>,
) -> Result<Json<wire::DaemonStatus>, HttpProblem> {
    let daemon = interface.daemon();
    let (held, queued) = daemon.occupancy();
    let tally = daemon.store().count_by_status().await?;
    let count = |status: RunStatus| (status.name().to_owned(), tally.get(&status).copied().unwrap_or(0));
    let stalled = gauges::stalled_runs(daemon).await?;
    Ok(Json(wire::DaemonStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started_at: interface.0.started_at.clone(),
        ready: daemon.is_ready(),
        slots_max: daemon.config().slots as u64,
        slots_held: held as u64,
        queued: queued as u64,
        open_interactions: daemon.store().count_open_interactions().await?,
        runs: STATUSES.into_iter().map(count).collect(),
        stalled: stalled.iter().map(ToString::to_string).collect(),
        unprocessable_runs: daemon.troubled().await?,
        resource_pressure: daemon.shortage(None).await.map(|shortage| shortage.to_string()),
        store_error: daemon.store().health().err().map(|error| error.to_string()),
        sessions: sessions(&interface).await,
        streams: interface.0.settings.max_streams.saturating_sub(interface.0.streams.available_permits())
            as u64,
    }))
}

/// Returns the number of terminal sessions.
async fn sessions(interface: &HttpState) -> u64 {
    let (answer, answered) = oneshot::channel();
    interface.0.terminals.call(TerminalCall::Stats, move |reply: Result<RuntimeStats, _>| {
        // The client may have disconnected.
        answer.send(reply).ok();
    });
    match answered.await {
        Ok(Ok(stats)) => stats.sessions as u64,
        Ok(Err(_)) | Err(_) => 0,
    }
}

/// Stops the daemon.
///
/// Ends all processes of runs and all terminal sessions, then returns the result for each run. A running turn becomes
/// `interrupted`: an interactive run asks whether to continue, a chat becomes idle, an `auto` run fails with
/// `STOPPED_BY_SHUTDOWN`. A question for which a process waits becomes void: a resumable run asks whether to continue,
/// a sticky one fails with `STOPPED_BY_SHUTDOWN`. Queued runs and questions without a process do not change. With
/// `keep`, processes and sessions continue, and the next daemon takes them over.
#[utoipa::path(
    post, path = "/v1/stop", tag = "service", operation_id = "stop",
    request_body(content = Option<wire::StopDaemonRequest>),
    responses(
        (status = 200, description = "The ended processes. The daemon exits after this response.", body = wire::StopDaemonResponse),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn stop(
    State(interface): State<HttpState>,
    OptionalBody(request): OptionalBody<wire::StopDaemonRequest>,
) -> Result<Json<wire::StopDaemonResponse>, HttpProblem> {
    if request.keep {
        interface.0.stop.send_replace(StopMode::Keep);
        return Ok(Json(wire::StopDaemonResponse::default()));
    }
    // A shutdown completes even if the client disconnects.
    let stopping = tokio::spawn(async move {
        let sessions = sessions(&interface).await;
        let stopped = interface.daemon().stop().await;
        interface.0.stop.send_replace(StopMode::Orderly);
        stopped.map(|stopped| (stopped, sessions))
    });
    let stopped =
        stopping.await.map_err(|_| HttpProblem::internal("the shutdown failed; see the daemon's log"))?;
    let (stopped, sessions) = stopped?;
    let names = |activity: ActivityBeforeStop| {
        let runs = stopped.runs.iter().filter(move |stopped| stopped.was == activity);
        runs.map(|stopped| stopped.run.run_id.to_string()).collect()
    };
    Ok(Json(wire::StopDaemonResponse {
        turns: names(ActivityBeforeStop::Turn),
        waiting_runs: names(ActivityBeforeStop::Wait),
        runs: stopped.runs.iter().map(stopped_run).collect(),
        sessions,
    }))
}

fn stopped_run(stopped: &StoppedRun) -> wire::StoppedRunView {
    let run = &stopped.run;
    let activity = match stopped.was {
        ActivityBeforeStop::Turn => "turn",
        ActivityBeforeStop::Wait => "wait",
        ActivityBeforeStop::Start => "start",
    };
    wire::StoppedRunView {
        run_id: run.run_id.to_string(),
        activity_before_stop: activity.to_owned(),
        status: run.status().name().to_owned(),
        error: run.error().map(translate::failure),
        pending_interaction_id: run.pending_interaction_id().map(|id| id.to_string()),
        stopped: stopped.is_stopped,
    }
}
