//! Engines installed on this machine.
//!
//! Detection runs the engines' programs, so its result is cached.

use std::time::Duration;

use abide_ports::engine::EngineHealth;
use abide_wire::service as wire;
use axum::{Json, extract::State};
use futures_util::future::join_all;
use tokio::{sync::Mutex, time::Instant};

use super::{HttpState, problem::HttpProblem, translate};

/// The last detection result and its time.
#[derive(Debug, Default)]
pub(super) struct EngineCache(Mutex<Option<(Instant, Vec<wire::EngineView>)>>);

/// Maximum age of the cached result.
const CACHE_MAX_AGE: Duration = Duration::from_secs(60);

/// Lists the engines with their availability and abilities.
///
/// The information may be up to one minute old.
#[utoipa::path(
    get, path = "/v1/engines", tag = "engines", operation_id = "list_engines",
    responses((status = 200, description = "All engines; there is never a second page.", body = wire::ListResponse<wire::EngineView>)),
)]
pub(super) async fn list(
    State(interface): State<HttpState>,
) -> Result<Json<wire::ListResponse<wire::EngineView>>, HttpProblem> {
    let mut cache = interface.0.engines.0.lock().await;
    let items = match cache.as_ref().filter(|(at, _)| at.elapsed() < CACHE_MAX_AGE) {
        Some((_, engines)) => engines.clone(),
        None => {
            let engines = probe_engines(&interface).await;
            *cache = Some((Instant::now(), engines.clone()));
            engines
        }
    };
    Ok(Json(wire::ListResponse { items, next_cursor: None }))
}

async fn probe_engines(interface: &HttpState) -> Vec<wire::EngineView> {
    let daemon = interface.daemon();
    let names = daemon.catalogue().names();
    let results = join_all(names.iter().map(|name| daemon.examine(name))).await;
    names.into_iter().zip(results).map(|(name, health)| engine_view(name, health)).collect()
}

fn engine_view(name: String, health: Option<EngineHealth>) -> wire::EngineView {
    let Some(health) = health else {
        let probe = "it is switched off; see the setting engines.NAME.enabled".to_owned();
        return wire::EngineView {
            name,
            version: None,
            available: false,
            wait_mode: None,
            abilities: vec![],
            probe,
        };
    };
    let available = health.failure.is_none();
    let wait_mode = available.then(|| translate::profile_kind(health.profile_kind()));
    wire::EngineView {
        name,
        version: health.version,
        available,
        wait_mode,
        abilities: health
            .abilities
            .iter()
            .filter(|_| available)
            .map(|ability| ability.name().to_owned())
            .collect(),
        probe: match &health.failure {
            Some(failure) => format!("{}: {}", translate::failure(failure).code, failure.message),
            None => health.resume.detail,
        },
    }
}
