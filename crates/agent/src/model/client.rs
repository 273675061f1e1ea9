//! The model client: sends a request and retries until it has a complete reply or a retry is pointless.
//!
//! The interface is synchronous. A single-threaded runtime inside makes waits bounded and interruptible. The interrupt
//! flag is polled every 20 ms.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abide_os::{random, suggestion};
use reqwest::Response;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use super::{
    connect::{self, ConnectFailure},
    endpoint::ModelEndpoint,
    error::ModelError,
    key::ApiKey,
    refusal::{self, ErrorVerdict, FieldSupport, RateLimited},
    reply::{ModelReply, ReplyDelta},
    request::{MaxTokensField, ModelRequest, RequestFields, UsageField},
    retry_policy::RetryPolicy,
    stream_decoder::{DecodeFault, DecodeProgress, MAX_RESPONSE_BYTES, StreamDecoder},
};
use crate::definition::ModelConfig;

/// A client for one model server.
#[derive(Debug)]
pub struct ModelClient {
    runtime: tokio::runtime::Runtime,
    http: reqwest::Client,
    endpoint: ModelEndpoint,
    model: ModelConfig,
    key: Option<ApiKey>,
    authorization: Option<HeaderValue>,
    retry_policy: RetryPolicy,
    request_fields: RequestFields,
    stop: Arc<AtomicBool>,
}

/// The reason why an attempt gave no reply.
enum AttemptFailure {
    Final(ModelError),
    Retry {
        reason: String,
        wait: Option<Duration>,
        limited: RateLimited,
    },
    /// Retry at once with a different form of the request.
    RetryAdjusted,
}

impl ModelClient {
    /// A client for this model. Pending waits end soon after `stop` is set. Nothing is sent yet.
    pub fn new(model: &ModelConfig, key: Option<ApiKey>, stop: Arc<AtomicBool>) -> Result<Self, ModelError> {
        let config_error =
            |error: String| ModelError::Config(format!("model.base_url {:?}: {error}", model.base_url));
        let endpoint = ModelEndpoint::parse(&model.base_url).map_err(config_error)?;
        let authorization =
            key.as_ref().map(connect::authorization).transpose().map_err(ModelError::Config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| ModelError::Config(format!("cannot start the async runtime: {error}")))?;
        let retry_policy = RetryPolicy::from_config(model);
        let http = connect::build_client(&endpoint, &retry_policy).map_err(ModelError::Config)?;
        Ok(Self {
            runtime,
            http,
            endpoint,
            model: model.clone(),
            key,
            authorization,
            retry_policy,
            request_fields: RequestFields {
                usage: UsageField::Requested,
                max_tokens_field: MaxTokensField::MaxTokens,
            },
            stop,
        })
    }

    /// Replaces the retry policy.
    #[must_use]
    pub fn with_retry_policy(mut self, retry_policy: RetryPolicy) -> Self {
        self.retry_policy = retry_policy;
        self
    }

    /// Sends a request and waits for a complete reply. Pieces and retries are reported to `on_delta`.
    pub fn complete(
        &mut self,
        request: &ModelRequest<'_>,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        let mut waits = self.retry_policy.backoff();
        let mut attempt = 1;
        loop {
            let (reason, retry_after, limited) = match self.attempt(request, on_delta) {
                Ok(reply) => return Ok(reply),
                Err(AttemptFailure::Final(error)) => return Err(error),
                Err(AttemptFailure::RetryAdjusted) => continue,
                Err(AttemptFailure::Retry { reason, wait, limited }) => (self.redact(&reason), wait, limited),
            };
            let max_retry_after = self.retry_policy.max_retry_after;
            let too_long = retry_after.filter(|wait| *wait > max_retry_after);
            if attempt > self.retry_policy.max_retries || too_long.is_some() {
                let asks = |wait: Duration| format!("{reason}, and it asks to wait {} s", wait.as_secs());
                let message = too_long.map_or_else(|| reason.clone(), asks);
                return Err(match limited {
                    RateLimited::Yes => ModelError::RateLimited { attempts: attempt, message },
                    RateLimited::No => ModelError::Unavailable { attempts: attempt, message },
                });
            }
            let wait = retry_after.or_else(|| waits.next()).unwrap_or(self.retry_policy.max_backoff);
            attempt += 1;
            on_delta(ReplyDelta::Retry {
                attempt,
                max_attempts: self.retry_policy.max_retries + 1,
                wait,
                reason: &reason,
            });
            // The timer must be created inside the runtime.
            let slept =
                self.runtime.block_on(or_stopped(&self.stop, async { tokio::time::sleep(wait).await }));
            slept.map_err(|ModelCallStopped| ModelError::Interrupted)?;
        }
    }

    fn attempt(
        &mut self,
        request: &ModelRequest<'_>,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, AttemptFailure> {
        let body = request.body(&self.model, self.request_fields);
        let stop = Arc::clone(&self.stop);
        let outcome = self.runtime.block_on(or_stopped(&stop, self.exchange(body, on_delta)));
        match outcome {
            Err(ModelCallStopped) => Err(AttemptFailure::Final(ModelError::Interrupted)),
            Ok(Ok(reply)) => {
                self.endpoint.keep_chosen();
                Ok(reply)
            }
            Ok(Err(ExchangeError::Decode(DecodeFault::Broken(reason)))) => {
                Err(AttemptFailure::Retry { reason, wait: None, limited: RateLimited::No })
            }
            Ok(Err(ExchangeError::Decode(DecodeFault::TooLarge))) => {
                Err(AttemptFailure::Final(ModelError::TooLarge { max_bytes: MAX_RESPONSE_BYTES }))
            }
            Ok(Err(ExchangeError::Decode(DecodeFault::ErrorObject(value)))) => {
                Err(self.attempt_failure(refusal::classify_error_object(&value), ResponseStatus(200)))
            }
            Ok(Err(ExchangeError::Refused { status, body, wait })) => {
                Err(self
                    .attempt_failure(refusal::classify_response(status, &body, wait), ResponseStatus(status)))
            }
            Ok(Err(ExchangeError::Permanent(message))) => {
                Err(AttemptFailure::Final(ModelError::Config(self.redact(&message))))
            }
        }
    }

    /// One request and its response.
    async fn exchange(
        &self,
        body: String,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ExchangeError> {
        let mut sending = self.http.post(self.endpoint.completions()).body(body);
        sending = sending.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
        if let Some(authorization) = &self.authorization {
            sending = sending.header(AUTHORIZATION, authorization.clone());
        }
        let response =
            self.with_idle_timeout(sending.send()).await?.map_err(|error| self.connect_error(&error))?;
        if !response.status().is_success() || is_html(&response) {
            return Err(self.read_error_response(response).await);
        }
        self.read_reply(response, on_delta).await
    }

    async fn read_reply(
        &self,
        mut response: Response,
        on_delta: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ExchangeError> {
        let mut decoder = StreamDecoder::default();
        let mut progress = DecodeProgress::Open;
        while progress != DecodeProgress::Ended {
            let next = match progress {
                DecodeProgress::Open | DecodeProgress::Ended => {
                    self.with_idle_timeout(response.chunk()).await?
                }
                // Only the token usage is missing, so a timeout or connection error no longer invalidates the reply.
                DecodeProgress::Complete => {
                    match tokio::time::timeout(self.retry_policy.usage_timeout, response.chunk()).await {
                        Ok(next @ Ok(_)) => next,
                        Ok(Err(_)) | Err(_) => break,
                    }
                }
            };
            match next {
                Ok(Some(bytes)) => progress = decoder.feed(&bytes, on_delta)?,
                Ok(None) => break,
                Err(error) => {
                    return Err(broken_error(format!(
                        "the answer was interrupted: {}",
                        connect::root_cause(&error)
                    )));
                }
            }
        }
        Ok(decoder.end(new_call_id, on_delta)?)
    }

    /// The error for a refusal, with as much of its body as can be read.
    async fn read_error_response(&self, mut response: Response) -> ExchangeError {
        let status = response.status().as_u16();
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let (wait, moved) = (refusal::retry_after(header), header("location"));
        let mut body = Vec::new();
        while body.len() < MAX_ERROR_BODY_BYTES {
            match self.with_idle_timeout(response.chunk()).await {
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
                Ok(Ok(None) | Err(_)) | Err(_) => break,
            }
        }
        let body = moved.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
        ExchangeError::Refused { status, body, wait }
    }

    fn attempt_failure(
        &mut self,
        verdict: ErrorVerdict,
        ResponseStatus(status): ResponseStatus,
    ) -> AttemptFailure {
        let url = self.endpoint.completions().to_string();
        match verdict {
            ErrorVerdict::NotFound { message } => {
                if self.endpoint.select_next() {
                    return AttemptFailure::RetryAdjusted;
                }
                self.endpoint.reset();
                AttemptFailure::Final(ModelError::NotFound { url, status, message: self.redact(&message) })
            }
            ErrorVerdict::Retry { reason, wait, limited } => AttemptFailure::Retry { reason, wait, limited },
            ErrorVerdict::Final(error) => AttemptFailure::Final(self.redact_error(error)),
            ErrorVerdict::Unauthorised { message } => {
                let advice = match &self.key {
                    Some(key) => {
                        format!("the key is from {}: is it the right one for {url}?", key.variable())
                    }
                    None => {
                        "no key was sent: name a variable in model.api_key_env, or set ABIDE_MODEL_API_KEY"
                            .to_owned()
                    }
                };
                let message = self.redact(&message);
                AttemptFailure::Final(ModelError::Unauthorised { status, message, advice })
            }
            ErrorVerdict::UnknownModel { message } => {
                let (model, message) = (self.model.name.clone(), self.redact(&message));
                let advice = self.suggest_models();
                AttemptFailure::Final(ModelError::UnknownModel { model, message, advice })
            }
            ErrorVerdict::UnsupportedField(FieldSupport::NoUsage)
                if self.request_fields.usage == UsageField::Requested =>
            {
                self.request_fields.usage = UsageField::Omitted;
                AttemptFailure::RetryAdjusted
            }
            ErrorVerdict::UnsupportedField(FieldSupport::MaxCompletionTokens)
                if self.request_fields.max_tokens_field == MaxTokensField::MaxTokens =>
            {
                self.request_fields.max_tokens_field = MaxTokensField::MaxCompletionTokens;
                AttemptFailure::RetryAdjusted
            }
            ErrorVerdict::UnsupportedField(dialect) => {
                let message = format!("it refuses {dialect:?} and its replacement");
                AttemptFailure::Final(ModelError::Refused { status, message })
            }
        }
    }

    /// Similar names from the server's list of models, which is requested only here and with a short timeout.
    fn suggest_models(&self) -> String {
        let mut asking = self.http.get(self.endpoint.models());
        if let Some(authorization) = &self.authorization {
            asking = asking.header(AUTHORIZATION, authorization.clone());
        }
        let listing = async {
            let mut response = asking.send().await.ok()?.error_for_status().ok()?;
            let mut body = Vec::new();
            while let Some(bytes) = response.chunk().await.ok()? {
                body.extend_from_slice(&bytes);
                if body.len() > MAX_MODEL_LIST_BYTES {
                    return None;
                }
            }
            let list: Value = serde_json::from_slice(&body).ok()?;
            let ids =
                list["data"].as_array()?.iter().filter_map(|model| model["id"].as_str().map(str::to_owned));
            Some(ids.collect::<Vec<String>>())
        };
        let bounded = async { tokio::time::timeout(MODEL_LIST_TIMEOUT, listing).await.ok().flatten() };
        let names = self.runtime.block_on(or_stopped(&self.stop, bounded)).ok().flatten().unwrap_or_default();
        if let Some(near) = suggestion::nearest(&self.model.name, names.iter().map(String::as_str)) {
            return format!("did you mean {near:?}? Set model.name, or ABIDE_MODEL");
        }
        if names.is_empty() {
            return "check model.name, or ABIDE_MODEL".to_owned();
        }
        let more = if names.len() > MAX_SUGGESTED_MODELS { ", …" } else { "" };
        let some: Vec<String> = names.into_iter().take(MAX_SUGGESTED_MODELS).collect();
        format!("it has {}{more}; set model.name, or ABIDE_MODEL", some.join(", "))
    }

    /// Waits with the idle timeout.
    async fn with_idle_timeout<T>(&self, future: impl Future<Output = T>) -> Result<T, ExchangeError> {
        let idle = self.retry_policy.idle_timeout;
        let silent = |_| {
            broken_error(format!("no data from the server for {} s (model.timeout_sec)", idle.as_secs_f64()))
        };
        tokio::time::timeout(idle, future).await.map_err(silent)
    }

    fn connect_error(&self, error: &reqwest::Error) -> ExchangeError {
        match connect::classify_connect_error(&self.endpoint.completions(), error) {
            ConnectFailure::Permanent(reason) => ExchangeError::Permanent(reason),
            ConnectFailure::Transient(reason) => broken_error(reason),
        }
    }

    fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    fn redact_error(&self, error: ModelError) -> ModelError {
        match error {
            ModelError::ContextLength { message } => {
                ModelError::ContextLength { message: self.redact(&message) }
            }
            ModelError::Quota { message } => ModelError::Quota { message: self.redact(&message) },
            ModelError::Refused { status, message } => {
                ModelError::Refused { status, message: self.redact(&message) }
            }
            ModelError::Config(_)
            | ModelError::Unauthorised { .. }
            | ModelError::UnknownModel { .. }
            | ModelError::NotFound { .. }
            | ModelError::RateLimited { .. }
            | ModelError::Unavailable { .. }
            | ModelError::TooLarge { .. }
            | ModelError::Interrupted => error,
        }
    }
}

/// The failure of one exchange.
enum ExchangeError {
    Decode(DecodeFault),
    Refused { status: u16, body: String, wait: Option<Duration> },
    Permanent(String),
}

struct ResponseStatus(u16);

/// Maximum number of bytes of a refusal.
const MAX_ERROR_BODY_BYTES: usize = 64 << 10;
/// Maximum number of bytes of a list of models.
const MAX_MODEL_LIST_BYTES: usize = 4 << 20;
/// Timeout of the request for the list of models.
const MODEL_LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of suggested models.
const MAX_SUGGESTED_MODELS: usize = 8;

impl From<DecodeFault> for ExchangeError {
    fn from(fault: DecodeFault) -> Self {
        Self::Decode(fault)
    }
}

fn broken_error(reason: String) -> ExchangeError {
    ExchangeError::Decode(DecodeFault::Broken(reason))
}

/// Whether the response is an HTML page, so that the server is not a model server.
fn is_html(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/html"))
}

fn new_call_id() -> String {
    format!("call_{}", random::name(16))
}

/// The interrupt flag was set before the model responded.
struct ModelCallStopped;

/// Waits for a future or for the interrupt flag.
async fn or_stopped<T>(stop: &AtomicBool, future: impl Future<Output = T>) -> Result<T, ModelCallStopped> {
    let stopped = async {
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(STOP_POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        () = stopped => Err(ModelCallStopped),
        done = future => Ok(done),
    }
}

/// Polling interval of the interrupt flag.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
