//! Error responses: always `application/problem+json` (RFC 9457), with a code for programs.
//!
//! [`ProblemCode::status_and_code`] is the only place that selects a status. The detail states the remedy. The cause of an
//! internal error is not exposed.

use abide_daemon::RequestError;
use abide_domain::refused::RequestRefused;
use abide_ports::store::{StoreError, StoreInputError};
use abide_wire::service as wire;
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::access::CredentialEnd;

/// Machine-readable cause of an error response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProblemCode {
    InvalidRequest,
    UnknownOption,
    UnknownEngine,
    InvalidCursor,
    WorkspaceUnusable,
    Unauthorized,
    ForbiddenHost,
    ForbiddenOrigin,
    PermissionDenied,
    ForbiddenPeer,
    NotFound,
    RunNotFound,
    InteractionNotFound,
    MessageNotFound,
    ArtifactNotFound,
    TokenNotFound,
    MethodNotAllowed,
    NotAcceptable,
    StaleInteraction,
    ApprovalNotShown,
    ApprovalUnclear,
    ContentGone,
    IdempotencyConflict,
    RunFinished,
    InboxFull,
    TokenExists,
    OwnerToken,
    TooManyTokens,
    TooSlow,
    TooLarge,
    UnsupportedMediaType,
    RangeNotSatisfiable,
    UpgradeRequired,
    RateLimited,
    TooManyConnections,
    NotReady,
    Stopping,
    StoreFull,
    ResourcePressure,
    StoreUnavailable,
    StoreGone,
    StoreInUse,
    OutcomeUnknown,
    Internal,
}

impl ProblemCode {
    /// Returns the HTTP status and the code text.
    pub(super) fn status_and_code(self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidRequest => (StatusCode::BAD_REQUEST, "INVALID_REQUEST"),
            Self::UnknownOption => (StatusCode::BAD_REQUEST, "UNKNOWN_OPTION"),
            Self::UnknownEngine => (StatusCode::BAD_REQUEST, "UNKNOWN_ENGINE"),
            Self::InvalidCursor => (StatusCode::BAD_REQUEST, "INVALID_CURSOR"),
            Self::WorkspaceUnusable => (StatusCode::BAD_REQUEST, "WORKSPACE_UNUSABLE"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"),
            Self::ForbiddenHost => (StatusCode::FORBIDDEN, "FORBIDDEN_HOST"),
            Self::ForbiddenOrigin => (StatusCode::FORBIDDEN, "FORBIDDEN_ORIGIN"),
            Self::ForbiddenPeer => (StatusCode::FORBIDDEN, "FORBIDDEN_PEER"),
            Self::PermissionDenied => (StatusCode::FORBIDDEN, "PERMISSION_DENIED"),
            Self::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            Self::RunNotFound => (StatusCode::NOT_FOUND, "RUN_NOT_FOUND"),
            Self::InteractionNotFound => (StatusCode::NOT_FOUND, "INTERACTION_NOT_FOUND"),
            Self::MessageNotFound => (StatusCode::NOT_FOUND, "MESSAGE_NOT_FOUND"),
            Self::ArtifactNotFound => (StatusCode::NOT_FOUND, "ARTIFACT_NOT_FOUND"),
            Self::TokenNotFound => (StatusCode::NOT_FOUND, "TOKEN_NOT_FOUND"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
            Self::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, "NOT_ACCEPTABLE"),
            Self::StaleInteraction => (StatusCode::CONFLICT, "STALE_INTERACTION"),
            Self::ApprovalNotShown => (StatusCode::CONFLICT, "APPROVAL_NOT_SHOWN"),
            Self::ApprovalUnclear => (StatusCode::UNPROCESSABLE_ENTITY, "APPROVAL_UNCLEAR"),
            Self::ContentGone => (StatusCode::GONE, "CONTENT_GONE"),
            Self::IdempotencyConflict => (StatusCode::CONFLICT, "IDEMPOTENCY_CONFLICT"),
            Self::RunFinished => (StatusCode::CONFLICT, "RUN_FINISHED"),
            Self::InboxFull => (StatusCode::CONFLICT, "INBOX_FULL"),
            Self::TokenExists => (StatusCode::CONFLICT, "TOKEN_EXISTS"),
            Self::OwnerToken => (StatusCode::CONFLICT, "OWNER_TOKEN"),
            Self::TooManyTokens => (StatusCode::CONFLICT, "TOO_MANY_TOKENS"),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "TOO_SLOW"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE"),
            Self::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE"),
            Self::RangeNotSatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, "RANGE_NOT_SATISFIABLE"),
            Self::UpgradeRequired => (StatusCode::UPGRADE_REQUIRED, "UPGRADE_REQUIRED"),
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED"),
            Self::TooManyConnections => (StatusCode::SERVICE_UNAVAILABLE, "TOO_MANY_CONNECTIONS"),
            Self::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "NOT_READY"),
            Self::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "STOPPING"),
            Self::StoreUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE"),
            Self::StoreGone => (StatusCode::SERVICE_UNAVAILABLE, "STORE_GONE"),
            Self::StoreInUse => (StatusCode::SERVICE_UNAVAILABLE, "STORE_IN_USE"),
            Self::StoreFull => (StatusCode::INSUFFICIENT_STORAGE, "STORE_FULL"),
            Self::ResourcePressure => (StatusCode::INSUFFICIENT_STORAGE, "RESOURCE_PRESSURE"),
            Self::OutcomeUnknown => (StatusCode::INTERNAL_SERVER_ERROR, "OUTCOME_UNKNOWN"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL"),
        }
    }

    /// Returns the `Retry-After` in seconds; `None` if a retry cannot succeed.
    fn retry_after(self) -> Option<u32> {
        match self {
            Self::RateLimited | Self::NotReady | Self::StoreUnavailable => Some(1),
            Self::TooManyConnections => Some(5),
            Self::InvalidRequest
            | Self::UnknownOption
            | Self::UnknownEngine
            | Self::InvalidCursor
            | Self::WorkspaceUnusable
            | Self::Unauthorized
            | Self::ForbiddenHost
            | Self::ForbiddenOrigin
            | Self::PermissionDenied
            | Self::ForbiddenPeer
            | Self::NotFound
            | Self::RunNotFound
            | Self::InteractionNotFound
            | Self::MessageNotFound
            | Self::ArtifactNotFound
            | Self::TokenNotFound
            | Self::MethodNotAllowed
            | Self::NotAcceptable
            | Self::StaleInteraction
            | Self::ApprovalNotShown
            | Self::ApprovalUnclear
            | Self::ContentGone
            | Self::IdempotencyConflict
            | Self::RunFinished
            | Self::InboxFull
            | Self::TokenExists
            | Self::OwnerToken
            | Self::TooManyTokens
            | Self::TooSlow
            | Self::TooLarge
            | Self::UnsupportedMediaType
            | Self::RangeNotSatisfiable
            | Self::UpgradeRequired
            | Self::Stopping
            | Self::StoreFull
            | Self::ResourcePressure
            | Self::StoreGone
            | Self::StoreInUse
            | Self::OutcomeUnknown
            | Self::Internal => None,
        }
    }
}

/// An error response before serialisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpProblem {
    pub(super) code: ProblemCode,
    pub(super) detail: String,
}

impl HttpProblem {
    pub(super) fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ProblemCode::InvalidRequest, detail)
    }

    pub(super) fn run_not_found(id: &str) -> Self {
        Self::new(
            ProblemCode::RunNotFound,
            format!("there is no run {id}; GET /v1/runs lists the runs there are"),
        )
    }

    pub(super) fn interaction_not_found(id: &str) -> Self {
        Self::new(
            ProblemCode::InteractionNotFound,
            format!(
                "there is no interaction {id}; GET /v1/interactions?state=open lists what can be answered"
            ),
        )
    }

    /// The credential ended while its request was in progress.
    pub(super) fn credential_ended(end: CredentialEnd) -> Self {
        Self::new(ProblemCode::Unauthorized, format!("{}; send a valid token", end.reason()))
    }

    /// An error caused by a defect in the daemon.
    pub(super) fn internal(detail: impl Into<String>) -> Self {
        Self::new(ProblemCode::Internal, detail)
    }

    pub(super) fn to_wire(&self) -> wire::ProblemDetails {
        let (status, code) = self.code.status_and_code();
        wire::ProblemDetails {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or("Refused").to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: self.detail.clone(),
        }
    }
}

pub(super) const PROBLEM_JSON: &str = "application/problem+json";

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let (status, _) = self.code.status_and_code();
        // Serialising text and a number does not fail.
        let body = serde_json::to_vec(&self.to_wire()).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if let Some(seconds) = self.code.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for HttpProblem {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Conflict { .. } => {
                return Self::new(
                    ProblemCode::StoreUnavailable,
                    "the run was changed by another request at the same time; try again",
                );
            }
            StoreError::Unavailable { .. } => ProblemCode::StoreUnavailable,
            StoreError::OutcomeUnknown { .. } => ProblemCode::OutcomeUnknown,
            StoreError::Full { .. } => ProblemCode::StoreFull,
            // Acknowledged input may be missing, so no further input is acknowledged.
            StoreError::FilesGone { .. } | StoreError::InputLost { .. } => ProblemCode::StoreGone,
            StoreError::InUse { .. } => ProblemCode::StoreInUse,
            StoreError::KeyTaken { .. } => ProblemCode::IdempotencyConflict,
            StoreError::Invalid(StoreInputError::Cursor) => {
                let advice = "use next_cursor unchanged, or leave it out to start from the beginning";
                return Self::new(ProblemCode::InvalidCursor, format!("{error}; {advice}"));
            }
            StoreError::Invalid(StoreInputError::KeyTooLong { .. }) => ProblemCode::InvalidRequest,
            StoreError::Unsupported { .. }
            | StoreError::Invalid(StoreInputError::Location { .. } | StoreInputError::Unencodable { .. })
            | StoreError::Damaged { .. }
            | StoreError::IncompatibleVersion { .. } => ProblemCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}

impl From<RequestRefused> for HttpProblem {
    fn from(refused: RequestRefused) -> Self {
        let (code, advice) = match &refused {
            RequestRefused::NoSuchRun => (ProblemCode::RunNotFound, "GET /v1/runs lists the runs there are"),
            RequestRefused::RunFinished { .. } => {
                (ProblemCode::RunFinished, "start a new one with POST /v1/runs")
            }
            RequestRefused::StaleInteraction { .. } => {
                (ProblemCode::StaleInteraction, "GET /v1/interactions?state=open lists what can be answered")
            }
            RequestRefused::IdempotencyConflict { .. } => (
                ProblemCode::IdempotencyConflict,
                "the first answer counts; use a new key for a new question",
            ),
            RequestRefused::ApprovalUnclear { .. } => (
                ProblemCode::ApprovalUnclear,
                "answer `yes` or `no`, or `no, …` with an instruction; the label of an option counts too",
            ),
            RequestRefused::ApprovalNotShown { interaction_id } => {
                let advice = format!(
                    "GET /v1/interactions/{interaction_id}/content has all of it and ends with the words that approve it; \
                     a `no` always counts"
                );
                return Self::new(ProblemCode::ApprovalNotShown, format!("{refused}; {advice}"));
            }
            RequestRefused::InboxFull { .. } => {
                (ProblemCode::InboxFull, "wait until the run has taken some, or interrupt it")
            }
            RequestRefused::RunExists
            | RequestRefused::NotQueued { .. }
            | RequestRefused::NothingToInterrupt { .. } => (
                ProblemCode::Internal,
                "the request does not fit the state of the run, which is a bug; please report it",
            ),
        };
        Self::new(code, format!("{refused}; {advice}"))
    }
}

impl From<RequestError> for HttpProblem {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(refused) => refused.into(),
            RequestError::KeyReused { .. } => Self::new(
                ProblemCode::IdempotencyConflict,
                format!("{error}; use a new key for a new request"),
            ),
            RequestError::Shortage(shortage) => Self::new(
                ProblemCode::ResourcePressure,
                format!(
                    "{shortage}; free some space, or lower the limit; open questions can still be answered"
                ),
            ),
            RequestError::Workspace(error) => Self::new(ProblemCode::WorkspaceUnusable, error.to_string()),
            RequestError::Store(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(error: StoreInputError) -> ProblemCode {
        HttpProblem::from(StoreError::Invalid(error)).code
    }

    #[test]
    fn only_a_bad_cursor_is_reported_as_one() {
        let text = || "a text".to_owned();
        assert_eq!(code_of(StoreInputError::Cursor), ProblemCode::InvalidCursor);
        assert_eq!(code_of(StoreInputError::KeyTooLong { reason: text() }), ProblemCode::InvalidRequest);
        assert_eq!(code_of(StoreInputError::Location { detail: text() }), ProblemCode::Internal);
        assert_eq!(code_of(StoreInputError::Unencodable { detail: text() }), ProblemCode::Internal);
    }

    #[test]
    fn a_bad_cursor_is_answered_with_the_remedy() {
        let problem = HttpProblem::from(StoreError::Invalid(StoreInputError::Cursor));
        assert_eq!(
            problem.detail,
            "the cursor is invalid; use next_cursor unchanged, or leave it out to start from the beginning"
        );
    }
}
