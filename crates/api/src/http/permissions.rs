//! The permission that each route requires, in one table.
//!
//! A route that is missing in the table requires `admin`; a test compares the table with the routes. Terminals require
//! `admin`, because they run commands as the daemon's user, outside of every engine's sandbox and without approvals.
//! `run` is meant for people who may talk to agents.

use abide_domain::interaction::{GatePurpose, Interaction, InteractionKind, InteractionOrigin};
use abide_wire::access::Permission;
use axum::http::Method;

use super::problem::{HttpProblem, ProblemCode};
use crate::access::Principal;

/// Requirement of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteAccess {
    Credential,
    /// A token; the sign-in obtained with it is not sufficient.
    Token,
    Needs(Permission),
    /// The permission required by the question, see [`needed_for`].
    Question,
}

use Permission::{Admin, Read, Run};
use RouteAccess::{Credential, Needs, Question, Token};

#[rustfmt::skip]
const ROUTES: &[(&str, &str, RouteAccess)] = &[
    ("GET", "/", Credential),
    ("GET", "/docs", Credential),
    ("GET", "/openapi.json", Credential),
    ("GET", "/healthz", Credential),
    ("GET", "/readyz", Credential),
    ("GET", "/metrics", Needs(Read)),
    ("GET", "/v1/status", Needs(Read)),
    ("GET", "/v1/engines", Needs(Read)),
    ("GET", "/v1/events", Needs(Read)),
    ("GET", "/v1/runs", Needs(Read)),
    ("POST", "/v1/runs", Needs(Run)),
    ("GET", "/v1/runs/{run_id}", Needs(Read)),
    ("GET", "/v1/runs/{run_id}/turns", Needs(Read)),
    ("GET", "/v1/runs/{run_id}/events", Needs(Read)),
    ("GET", "/v1/runs/{run_id}/interactions", Needs(Read)),
    ("GET", "/v1/runs/{run_id}/artifacts", Needs(Read)),
    ("GET", "/v1/runs/{run_id}/artifacts/{*path}", Needs(Read)),
    ("POST", "/v1/runs/{run_id}/messages", Needs(Run)),
    ("POST", "/v1/runs/{run_id}/interrupt", Needs(Run)),
    ("POST", "/v1/runs/{run_id}/cancel", Needs(Run)),
    ("GET", "/v1/interactions", Needs(Read)),
    ("GET", "/v1/interactions/{interaction_id}/content", Needs(Read)),
    ("POST", "/v1/interactions/{interaction_id}/reply", Question),
    ("GET", "/v1/inbound/{channel}/{message_id}", Needs(Read)),
    ("GET", "/v1/rpc", Needs(Admin)),
    ("POST", "/v1/rpc", Needs(Admin)),
    ("POST", "/v1/session", Token),
    ("DELETE", "/v1/session", Credential),
    ("GET", "/v1/sign-ins", Needs(Admin)),
    ("DELETE", "/v1/sign-ins/{sign_in_id}", Needs(Admin)),
    ("GET", "/v1/tokens", Needs(Admin)),
    ("POST", "/v1/tokens", Needs(Admin)),
    ("DELETE", "/v1/tokens/{name}", Needs(Admin)),
    ("POST", "/v1/tokens/{name}/rotate", Needs(Admin)),
    ("POST", "/v1/stop", Needs(Admin)),
];

/// Returns the requirement of a route. Any credential may see the "not found" response for an unknown path.
fn route_access(method: &Method, route: Option<&str>) -> RouteAccess {
    let Some(route) = route else { return Credential };
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    let entry = ROUTES.iter().find(|(entry, path, _)| *entry == method && *path == route);
    entry.map_or(Needs(Admin), |(_, _, access)| *access)
}

/// Routes that may end the credential of their own request. Its response is sent nevertheless, because it may contain
/// the new secret. These routes have no body, so they are executed as soon as the request is authenticated.
const ENDING_ROUTES: [(&str, &str); 4] = [
    ("DELETE", "/v1/session"),
    ("DELETE", "/v1/sign-ins/{sign_in_id}"),
    ("DELETE", "/v1/tokens/{name}"),
    ("POST", "/v1/tokens/{name}/rotate"),
];

/// Returns whether a request to this route may end its own credential.
pub(super) fn may_end_own_credential(method: &Method, route: Option<&str>) -> bool {
    route.is_some_and(|route| ENDING_ROUTES.contains(&(method.as_str(), route)))
}

/// Rejects a client whose credential does not permit this route.
pub(super) fn check(principal: &Principal, method: &Method, route: Option<&str>) -> Result<(), HttpProblem> {
    match route_access(method, route) {
        Credential | Question => Ok(()),
        Needs(permission) => require(principal, permission),
        Token if principal.sign_in.is_none() => Ok(()),
        Token => Err(HttpProblem::new(
            ProblemCode::PermissionDenied,
            "a sign-in cannot create another one; send the token itself: authorization: Bearer TOKEN",
        )),
    }
}

/// Rejects a client without this permission.
pub(super) fn require(principal: &Principal, needed: Permission) -> Result<(), HttpProblem> {
    if principal.permissions.includes(needed) {
        return Ok(());
    }
    Err(HttpProblem::new(
        ProblemCode::PermissionDenied,
        format!(
            "this needs the permission {}, and the token {} has only {}; the owner can make another one: abide token new \
             NAME --permit {}",
            needed.as_str(),
            principal.token,
            principal.permissions,
            needed.as_str(),
        ),
    ))
}

/// Returns the permission for answering this question: `approve` if it grants permission or accepts a risk, otherwise
/// `answer`.
pub(super) fn needed_for(interaction: &Interaction) -> Permission {
    let is_approval = interaction.question.kind == InteractionKind::RiskAck
        || matches!(&interaction.origin, InteractionOrigin::Gate { purpose: GatePurpose::Approval, .. });
    if is_approval { Permission::Approve } else { Permission::Answer }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_in_the_table_and_the_table_has_no_other() {
        let document = crate::http::openapi();
        let declared: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        let listed: BTreeSet<(String, String)> =
            ROUTES.iter().map(|(method, path, _)| ((*method).to_owned(), path.replace("{*", "{"))).collect();
        assert_eq!(listed, declared);
        assert_eq!(listed.len(), ROUTES.len(), "none is listed twice");
    }

    #[test]
    fn a_route_missing_in_the_table_needs_admin() {
        assert_eq!(route_access(&Method::PUT, Some("/v1/runs")), Needs(Admin));
        assert_eq!(route_access(&Method::GET, Some("/v1/secret")), Needs(Admin));
        assert_eq!(route_access(&Method::HEAD, Some("/v1/runs")), Needs(Read));
        assert_eq!(route_access(&Method::GET, None), Credential);
    }
}
