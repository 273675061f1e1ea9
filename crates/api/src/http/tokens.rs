//! Routes for tokens and browser sign-ins. Their rules are in `access` and `permissions`.

use abide_wire::{access as wire, service};
use axum::{
    Json,
    extract::{Extension, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    HttpState,
    body::{JsonBody, PathParams, QueryParams, validate_limit},
    guard::PAGE_KEY_HEADER,
    problem::{HttpProblem, ProblemCode},
};
use crate::access::{AccessError, AccessRegistry, Principal, SIGN_IN_MAX_AGE};

/// Which part of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TokensQuery {
    /// The `next_cursor` of the previous page; default: the first page.
    cursor: Option<String>,
    /// Maximum number of items; default 100.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// Lists the tokens by name, without their secrets.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "access", operation_id = "list_tokens",
    params(TokensQuery),
    responses(
        (status = 200, description = "A page of tokens.", body = service::ListResponse<wire::AccessToken>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
    ),
)]
pub(super) async fn list(
    State(interface): State<HttpState>,
    QueryParams(part): QueryParams<TokensQuery>,
) -> Result<Json<service::ListResponse<wire::AccessToken>>, HttpProblem> {
    let tokens = interface.0.access.tokens();
    Ok(Json(page(tokens, &part, |token| token.name.clone())?))
}

/// Creates a token. Only this response contains its secret.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "access", operation_id = "create_token",
    request_body = wire::CreateTokenRequest,
    responses(
        (status = 201, description = "The token with its secret.", body = wire::IssuedToken),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
        (status = 409, description = "`TOKEN_EXISTS`: the name is taken; `TOO_MANY_TOKENS`"),
        (status = 413, description = "`TOO_LARGE`"),
        (status = 415, description = "`UNSUPPORTED_MEDIA_TYPE`"),
    ),
)]
pub(super) async fn create(
    State(interface): State<HttpState>,
    body: JsonBody<wire::CreateTokenRequest>,
) -> Result<(StatusCode, Json<wire::IssuedToken>), HttpProblem> {
    let now = interface.daemon().stamp().at;
    let issued = change(&interface, move |access| access.create_token(&body.parsed, now)).await?;
    Ok((StatusCode::CREATED, Json(issued)))
}

/// Replaces the secret of a token.
///
/// The old secret and the sign-ins of the token end at once. The new secret of `owner` is also written to the file
/// `token` of Abide's home. The lifetime of a token that expires begins again.
#[utoipa::path(
    post, path = "/v1/tokens/{name}/rotate", tag = "access", operation_id = "rotate_token",
    params(("name" = String, Path, description = "The token.")),
    responses(
        (status = 200, description = "The token with its new secret.", body = wire::IssuedToken),
        (status = 404, description = "`TOKEN_NOT_FOUND`"),
    ),
)]
pub(super) async fn rotate(
    State(interface): State<HttpState>,
    PathParams(name): PathParams<String>,
) -> Result<Json<wire::IssuedToken>, HttpProblem> {
    let now = interface.daemon().stamp().at;
    Ok(Json(change(&interface, move |access| access.rotate(&name, now)).await?))
}

/// Revokes a token and ends its sign-ins.
#[utoipa::path(
    delete, path = "/v1/tokens/{name}", tag = "access", operation_id = "revoke_token",
    params(("name" = String, Path, description = "The token.")),
    responses(
        (status = 204, description = "The token is revoked."),
        (status = 404, description = "`TOKEN_NOT_FOUND`"),
        (status = 409, description = "`OWNER_TOKEN`: the owner token can only be rotated"),
    ),
)]
pub(super) async fn revoke(
    State(interface): State<HttpState>,
    PathParams(name): PathParams<String>,
) -> Result<StatusCode, HttpProblem> {
    // The id of a sign-in is not a token name.
    if name.starts_with("sin_") {
        return Err(AccessError::NotFound(name).into());
    }
    change(&interface, move |access| access.revoke(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the browsers that are signed in.
#[utoipa::path(
    get, path = "/v1/sign-ins", tag = "access", operation_id = "list_sign_ins",
    params(TokensQuery),
    responses(
        (status = 200, description = "A page of sign-ins.", body = service::ListResponse<wire::SignIn>),
        (status = 400, description = "`INVALID_REQUEST`, `UNKNOWN_OPTION`"),
    ),
)]
pub(super) async fn sign_ins(
    State(interface): State<HttpState>,
    QueryParams(part): QueryParams<TokensQuery>,
) -> Result<Json<service::ListResponse<wire::SignIn>>, HttpProblem> {
    let mut sign_ins = interface.0.access.sign_ins(interface.daemon().stamp().at);
    sign_ins.sort_by(|one, other| one.sign_in_id.cmp(&other.sign_in_id));
    Ok(Json(page(sign_ins, &part, |sign_in| sign_in.sign_in_id.clone())?))
}

/// Signs a browser out.
#[utoipa::path(
    delete, path = "/v1/sign-ins/{sign_in_id}", tag = "access", operation_id = "end_sign_in",
    params(("sign_in_id" = String, Path, description = "The sign-in.")),
    responses(
        (status = 204, description = "The sign-in has ended."),
        (status = 404, description = "`TOKEN_NOT_FOUND`"),
    ),
)]
pub(super) async fn end_sign_in(
    State(interface): State<HttpState>,
    PathParams(id): PathParams<String>,
) -> Result<StatusCode, HttpProblem> {
    if !id.starts_with("sin_") {
        return Err(AccessError::NotFound(id).into());
    }
    change(&interface, move |access| access.revoke(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Exchanges the token for a sign-in, for browsers.
///
/// Pages cannot read the cookie, and other sites cannot send it, but browsers send it to every port of the host. The
/// cookie alone is therefore not sufficient. The page keeps the value of `Abide-Session-Key` in the storage of its
/// origin and sends it with each request as the header of that name, or for a WebSocket as the subprotocol
/// `abide.key.KEY` beside `abide.rpc`. A sign-in has the permissions of its token. It ends after 14 days without use,
/// after 90 days, with `DELETE`, and when its token is rotated or revoked.
#[utoipa::path(
    post, path = "/v1/session", tag = "access", operation_id = "open_session",
    responses((status = 204, description = "The browser is signed in.", headers(
        ("Set-Cookie" = String, description = "The cookie; its name begins with `abide_session_`. `Secure` behind https."),
        ("Abide-Session-Key" = String, description = "The page's key."),
    ))),
)]
pub(super) async fn open_session(
    State(interface): State<HttpState>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    let now = interface.daemon().stamp().at;
    let browser = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
    let browser = browser.map(|name| name.chars().take(MAX_BROWSER_NAME_CHARS).collect());
    let signed_in = change(&interface, move |access| access.sign_in(&principal, browser, now)).await?;
    let cookie = cookie(&interface, &headers, &signed_in.cookie, SIGN_IN_MAX_AGE.0);
    let mut response = (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response();
    if let Ok(key) = HeaderValue::from_str(&signed_in.page_key) {
        response.headers_mut().insert(PAGE_KEY_HEADER, key);
    }
    Ok(response)
}

/// Signs the requesting browser out.
#[utoipa::path(
    delete, path = "/v1/session", tag = "access", operation_id = "close_session",
    responses((status = 204, description = "The sign-in has ended, and the cookie is deleted.", headers(("Set-Cookie" = String, description = "Nothing, from now on.")))),
)]
pub(super) async fn close_session(
    State(interface): State<HttpState>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    if let Some(sign_in) = principal.sign_in {
        match change(&interface, move |access| access.revoke(&sign_in)).await {
            // A concurrent request may have ended the sign-in.
            Ok(()) | Err(HttpProblem { code: ProblemCode::TokenNotFound, .. }) => {}
            Err(problem) => return Err(problem),
        }
    }
    let cookie = cookie(&interface, &headers, "", 0);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Maximum stored length of a browser's name, in characters.
const MAX_BROWSER_NAME_CHARS: usize = 200;

fn cookie(interface: &HttpState, headers: &HeaderMap, value: &str, max_age: u32) -> String {
    let name = interface.0.access.cookie_name();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // The `Origin` shows the scheme that the browser uses, also behind a proxy that terminates TLS.
    let is_https =
        text("origin").starts_with("https://") || text("x-forwarded-proto").eq_ignore_ascii_case("https");
    let secure = if is_https { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age}{secure}")
}

/// Changes credentials on a thread that may block on the disk.
async fn change<T: Send + 'static>(
    interface: &HttpState,
    change: impl FnOnce(&AccessRegistry) -> Result<T, AccessError> + Send + 'static,
) -> Result<T, HttpProblem> {
    let access = interface.0.access.clone();
    let changed = tokio::task::spawn_blocking(move || change(&access)).await;
    changed
        .map_err(|_| HttpProblem::internal("the credentials could not be changed"))?
        .map_err(HttpProblem::from)
}

/// Returns a page of a list that is sorted by key.
fn page<T>(
    items: Vec<T>,
    part: &TokensQuery,
    key: impl Fn(&T) -> String,
) -> Result<service::ListResponse<T>, HttpProblem> {
    let most = validate_limit(part.limit)?;
    let mut items: Vec<T> = items
        .into_iter()
        .filter(|item| part.cursor.as_ref().is_none_or(|cursor| key(item) > *cursor))
        .collect();
    let has_more = items.len() > most;
    items.truncate(most);
    let next_cursor = items.last().filter(|_| has_more).map(&key);
    Ok(service::ListResponse { items, next_cursor })
}

impl From<AccessError> for HttpProblem {
    fn from(error: AccessError) -> Self {
        let code = match &error {
            AccessError::NameTaken(_) => ProblemCode::TokenExists,
            AccessError::NotFound(_) => ProblemCode::TokenNotFound,
            AccessError::OwnerNotRevocable => ProblemCode::OwnerToken,
            AccessError::Invalid(_) => ProblemCode::InvalidRequest,
            AccessError::CredentialEnded(_) => ProblemCode::Unauthorized,
            AccessError::TooManyTokens => ProblemCode::TooManyTokens,
            AccessError::Storage(_) | AccessError::Damaged(_) => ProblemCode::Internal,
        };
        Self::new(code, error.to_string())
    }
}
