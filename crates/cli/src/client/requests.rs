//! Requests to the daemon, one function per route. Functions ending in `_now` do not retry.

use std::io::Read;

use abide_wire::{
    access::{AccessToken, CreateTokenRequest, IssuedToken, SignIn},
    event::EventEnvelope,
    interaction::{InteractionView, ReplyRequest, ReplyResponse},
    message::{SendMessageRequest, SendMessageResponse},
    run::{AcceptedResponse, CreateRunRequest, RunView, TurnView},
    service::{DaemonStatus, ListResponse, StopDaemonRequest, StopDaemonResponse},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{DaemonClient, DaemonRequest, RequestAction};
use crate::error::CliError;

/// Page size; the daemon's maximum.
const PAGE_ITEMS: usize = 500;

impl DaemonClient {
    /// Starts a run. `key` is the idempotency key.
    pub(crate) fn create(&self, new: &CreateRunRequest, key: &str) -> anyhow::Result<RunView> {
        let request =
            DaemonRequest { key: Some(key.to_owned()), ..post_json_request("/v1/runs".to_owned(), new)? };
        self.request(&request)
    }

    pub(crate) fn run(&self, run: &str) -> anyhow::Result<RunView> {
        self.request(&get_request(format!("/v1/runs/{run}")))
    }

    /// Returns a run, without retries.
    pub(crate) fn run_now(&self, run: &str) -> Result<RunView, CliError> {
        self.request_once(&get_request(format!("/v1/runs/{run}")))
    }

    /// Returns the newest runs, at most `max_items`, optionally of one status.
    pub(crate) fn runs(&self, status: Option<&str>, max_items: usize) -> anyhow::Result<Vec<RunView>> {
        let filter = status.map(|status| format!("&status={status}")).unwrap_or_default();
        self.list("/v1/runs", &filter, max_items)
    }

    pub(crate) fn turns(&self, run: &str) -> anyhow::Result<Vec<TurnView>> {
        self.list(&format!("/v1/runs/{run}/turns"), "", usize::MAX)
    }

    /// Returns a run's turns after turn `after`, without retries.
    pub(crate) fn turns_now(&self, run: &str, after: u32) -> Result<Vec<TurnView>, CliError> {
        let mut turns = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/runs/{run}/turns?limit={PAGE_ITEMS}{cursor}");
            let page: ListResponse<TurnView> = self.request_once(&get_request(path))?;
            turns.extend(page.items.into_iter().filter(|turn| turn.turn_index > after));
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={}", percent_encode(&next)),
                None => return Ok(turns),
            }
        }
    }

    pub(crate) fn interactions(&self, run: &str) -> anyhow::Result<Vec<InteractionView>> {
        self.list(&format!("/v1/runs/{run}/interactions"), "", usize::MAX)
    }

    /// Returns one question of a run, without retries.
    pub(crate) fn interaction_now(&self, run: &str, id: &str) -> Result<Option<InteractionView>, CliError> {
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/runs/{run}/interactions?limit={PAGE_ITEMS}{cursor}");
            let page: ListResponse<InteractionView> = self.request_once(&get_request(path))?;
            let interaction = page.items.into_iter().find(|it| it.interaction_id == id);
            match (interaction, page.next_cursor) {
                (None, Some(next)) => cursor = format!("&cursor={}", percent_encode(&next)),
                (interaction, _) => return Ok(interaction),
            }
        }
    }

    /// Returns all open questions, oldest first, at most `max_items`.
    pub(crate) fn inbox(&self, max_items: usize) -> anyhow::Result<Vec<InteractionView>> {
        self.list("/v1/interactions", "&state=open", max_items)
    }

    /// Streams the full content of a question.
    pub(crate) fn content(&self, interaction: &str) -> Result<impl Read + use<>, CliError> {
        let request = get_request(format!("/v1/interactions/{interaction}/content"));
        let response = self.send(&request, "text/plain", None)?;
        Ok(response.into_body().into_with_config().limit(u64::MAX).reader())
    }

    /// Answers a question. `key` is the idempotency key.
    pub(crate) fn reply(&self, interaction: &str, text: &str, key: &str) -> anyhow::Result<ReplyResponse> {
        self.request(&reply_request(interaction, text, key)?)
    }

    /// Answers a question, without retries.
    pub(crate) fn reply_now(
        &self,
        interaction: &str,
        text: &str,
        key: &str,
    ) -> Result<ReplyResponse, CliError> {
        self.request_once(&reply_request(interaction, text, key)?)
    }

    /// Sends a message to a run. Its message id is the idempotency key.
    pub(crate) fn message(
        &self,
        run: &str,
        message: &SendMessageRequest,
    ) -> anyhow::Result<SendMessageResponse> {
        self.request(&post_json_request(format!("/v1/runs/{run}/messages"), message)?)
    }

    /// Sends a message to a run, without retries.
    pub(crate) fn message_now(
        &self,
        run: &str,
        message: &SendMessageRequest,
    ) -> Result<SendMessageResponse, CliError> {
        self.request_once(&post_json_request(format!("/v1/runs/{run}/messages"), message)?)
    }

    pub(crate) fn interrupt(&self, run: &str) -> anyhow::Result<AcceptedResponse> {
        self.request(&post_request(format!("/v1/runs/{run}/interrupt")))
    }

    pub(crate) fn cancel(&self, run: &str) -> anyhow::Result<AcceptedResponse> {
        self.request(&post_request(format!("/v1/runs/{run}/cancel")))
    }

    /// Returns a page of events after `after` and whether it is the last page, without retries.
    pub(crate) fn events_now(&self, run: &str, after: u64) -> Result<(Vec<EventEnvelope>, bool), CliError> {
        let path = format!("/v1/runs/{run}/events?after={after}&limit={PAGE_ITEMS}");
        let page: ListResponse<EventEnvelope> = self.request_once(&get_request(path))?;
        Ok((page.items, page.next_cursor.is_none()))
    }

    /// Returns all events of a run so far.
    pub(crate) fn events(&self, run: &str) -> anyhow::Result<Vec<EventEnvelope>> {
        let mut events: Vec<EventEnvelope> = Vec::new();
        loop {
            let after = events.last().map_or(0, |event| event.seq);
            let page: ListResponse<EventEnvelope> = self
                .request(&get_request(format!("/v1/runs/{run}/events?after={after}&limit={PAGE_ITEMS}")))?;
            events.extend(page.items);
            if page.next_cursor.is_none() {
                return Ok(events);
            }
        }
    }

    pub(crate) fn tokens(&self) -> anyhow::Result<Vec<AccessToken>> {
        self.list("/v1/tokens", "", usize::MAX)
    }

    pub(crate) fn sign_ins(&self) -> anyhow::Result<Vec<SignIn>> {
        self.list("/v1/sign-ins", "", usize::MAX)
    }

    /// Creates a token, without retries: a retry would fail because the token already exists.
    pub(crate) fn new_token(&self, new: &CreateTokenRequest) -> Result<IssuedToken, CliError> {
        self.request_once(&post_json_request("/v1/tokens".to_owned(), new)?)
    }

    pub(crate) fn rotate_token(&self, name: &str) -> Result<IssuedToken, CliError> {
        self.request_once(&post_request(format!("/v1/tokens/{}/rotate", percent_encode(name))))
    }

    /// Revokes a token or ends a browser sign-in.
    pub(crate) fn revoke(&self, name: &str) -> Result<(), CliError> {
        let kind = if name.starts_with("sin_") { "sign-ins" } else { "tokens" };
        let path = format!("/v1/{kind}/{}", percent_encode(name));
        self.request_once(&DaemonRequest { path, action: RequestAction::Delete, key: None })
    }

    pub(crate) fn status(&self) -> anyhow::Result<DaemonStatus> {
        Ok(self.request_once(&get_request("/v1/status".to_owned()))?)
    }

    pub(crate) fn stop(&self, request: StopDaemonRequest) -> Result<StopDaemonResponse, CliError> {
        self.request_once(&post_json_request("/v1/stop".to_owned(), &request)?)
    }

    fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        filter: &str,
        max_items: usize,
    ) -> anyhow::Result<Vec<T>> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        while items.len() < max_items {
            let limit = (max_items - items.len()).min(PAGE_ITEMS);
            let page: ListResponse<T> =
                self.request(&get_request(format!("{path}?limit={limit}{filter}{cursor}")))?;
            items.extend(page.items);
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={}", percent_encode(&next)),
                None => break,
            }
        }
        Ok(items)
    }
}

/// Percent-encodes a text for a query.
fn percent_encode(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    text.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn get_request(path: String) -> DaemonRequest {
    DaemonRequest { path, action: RequestAction::Get, key: None }
}

fn post_request(path: String) -> DaemonRequest {
    DaemonRequest { path, action: RequestAction::Post(b"{}".to_vec()), key: None }
}

fn reply_request(interaction: &str, text: &str, key: &str) -> Result<DaemonRequest, CliError> {
    let reply = ReplyRequest { text: text.to_owned(), idempotency_key: Some(key.to_owned()) };
    post_json_request(format!("/v1/interactions/{interaction}/reply"), &reply)
}

fn post_json_request(path: String, body: &impl Serialize) -> Result<DaemonRequest, CliError> {
    let body = serde_json::to_vec(body).map_err(|error| {
        CliError::failure("FAILED", format!("cannot encode the request as JSON: {error}"))
    })?;
    Ok(DaemonRequest { path, action: RequestAction::Post(body), key: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cursor_is_percent_encoded() {
        assert_eq!(percent_encode("run_01k+a/b=&c"), "run_01k%2Ba%2Fb%3D%26c");
    }
}
