//! The model client: sends a request and retries until it has a complete reply or a retry is pointless.
//!
//! The interface is synchronous. A single-threaded runtime inside makes waits bounded and interruptible. The interrupt
//! flag is polled every 20 ms.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use super::{
    connect::{self, ConnectFailure},
    endpoint::ModelEndpoint,
    error::ModelError,
    hearing::{DecodeFault, DecodeProgress, MOST_BYTES, StreamDecoder},
    key::ApiKey,
    patience::RetryPolicy,
    refusal::{self, ErrorVerdict, FieldSupport, RateLimited},
    reply::{ModelReply, ReplyDelta},
    request::{MaxTokensField, ModelRequest, RequestFields, UsageField},
};
use crate::{
    clock,
    definition::{ModelConfig, nearest},
};

/// A client for one model server.
#[derive(Debug)]
pub struct ModelClient {
    runtime: tokio::runtime::Runtime,
    http: reqwest::Client,
    endpoint: ModelEndpoint,
    model: ModelConfig,
    key: Option<ApiKey>,
    authorization: Option<HeaderValue>,
    patience: RetryPolicy,
    spelling: RequestFields,
    stop: Arc<AtomicBool>,
}

/// The reason why an attempt gave no reply.
enum AttemptFailure {
    Final(ModelError),
    Again {
        why: String,
        wait: Option<Duration>,
        limited: RateLimited,
    },
    /// Retry at once with a different form of the request.
    Otherwise,
}

impl ModelClient {
    /// A client for this model. Pending waits end soon after `stop` is set. Nothing is sent yet.
    pub fn new(model: &ModelConfig, key: Option<ApiKey>, stop: Arc<AtomicBool>) -> Result<Self, ModelError> {
        let wrong =
            |error: String| ModelError::Config(format!("model.base_url {:?}: {error}", model.base_url));
        let endpoint = ModelEndpoint::parse(&model.base_url).map_err(wrong)?;
        let authorization =
            key.as_ref().map(connect::authorization).transpose().map_err(ModelError::Config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ModelError::Config(format!("no runtime: {error}")))?;
        let patience = RetryPolicy::of(model);
        let http = connect::http(&endpoint, &patience).map_err(ModelError::Config)?;
        Ok(Self {
            runtime,
            http,
            endpoint,
            model: model.clone(),
            key,
            authorization,
            patience,
            spelling: RequestFields { usage: UsageField::Yes, most: MaxTokensField::MaxTokens },
            stop,
        })
    }

    /// Replaces the retry policy.
    #[must_use]
    pub fn with_patience(mut self, patience: RetryPolicy) -> Self {
        self.patience = patience;
        self
    }

    /// Sends a request and waits for a complete reply. Pieces and retries are reported to `said`.
    pub fn ask(
        &mut self,
        request: &ModelRequest<'_>,
        said: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ModelError> {
        let mut waits = self.patience.waits();
        let mut attempt = 1;
        loop {
            let (why, asked, limited) = match self.attempt(request, said) {
                Ok(reply) => return Ok(reply),
                Err(AttemptFailure::Final(error)) => return Err(error),
                Err(AttemptFailure::Otherwise) => continue,
                Err(AttemptFailure::Again { why, wait, limited }) => (self.struck(&why), wait, limited),
            };
            let longest = self.patience.longest_asked;
            let too_long = asked.filter(|wait| *wait > longest);
            if attempt > self.patience.retries || too_long.is_some() {
                let asks = |wait: Duration| format!("{why}, and it asks to wait {} s", wait.as_secs());
                let message = too_long.map_or_else(|| why.clone(), asks);
                return Err(match limited {
                    RateLimited::Yes => ModelError::RateLimited { attempts: attempt, message },
                    RateLimited::No => ModelError::Unavailable { attempts: attempt, message },
                });
            }
            let wait = asked.or_else(|| waits.next()).unwrap_or(self.patience.longest_wait);
            attempt += 1;
            said(ReplyDelta::Retry { attempt, of: self.patience.retries + 1, wait, why: &why });
            // The timer must be created inside the runtime.
            let slept = self.runtime.block_on(until(&self.stop, async { tokio::time::sleep(wait).await }));
            slept.map_err(|StopRequested| ModelError::Interrupted)?;
        }
    }

    fn attempt(
        &mut self,
        request: &ModelRequest<'_>,
        said: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, AttemptFailure> {
        let body = request.body(&self.model, self.spelling);
        let stop = Arc::clone(&self.stop);
        let outcome = self.runtime.block_on(until(&stop, self.exchange(body, said)));
        match outcome {
            Err(StopRequested) => Err(AttemptFailure::Final(ModelError::Interrupted)),
            Ok(Ok(reply)) => {
                self.endpoint.keep();
                Ok(reply)
            }
            Ok(Err(ExchangeError::Fault(DecodeFault::Broken(why)))) => {
                Err(AttemptFailure::Again { why, wait: None, limited: RateLimited::No })
            }
            Ok(Err(ExchangeError::Fault(DecodeFault::TooLarge))) => {
                Err(AttemptFailure::Final(ModelError::TooLarge { most: MOST_BYTES }))
            }
            Ok(Err(ExchangeError::Fault(DecodeFault::Told(value)))) => {
                Err(self.judged(refusal::judge_told(&value), ResponseStatus(200)))
            }
            Ok(Err(ExchangeError::Refused { status, body, wait })) => {
                Err(self.judged(refusal::judge(status, &body, wait), ResponseStatus(status)))
            }
            Ok(Err(ExchangeError::Hopeless(message))) => {
                Err(AttemptFailure::Final(ModelError::Config(self.struck(&message))))
            }
        }
    }

    /// One request and its response.
    async fn exchange(
        &self,
        body: String,
        said: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ExchangeError> {
        let mut sending = self.http.post(self.endpoint.completions()).body(body);
        sending = sending.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
        if let Some(authorization) = &self.authorization {
            sending = sending.header(AUTHORIZATION, authorization.clone());
        }
        let response = self.patient(sending.send()).await?.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() || is_page(&response) {
            return Err(self.refused(response).await);
        }
        self.hear(response, said).await
    }

    async fn hear(
        &self,
        mut response: Response,
        said: &mut dyn FnMut(ReplyDelta<'_>),
    ) -> Result<ModelReply, ExchangeError> {
        let mut hearing = StreamDecoder::default();
        let mut progress = DecodeProgress::Open;
        while progress != DecodeProgress::Over {
            let next = match progress {
                DecodeProgress::Open | DecodeProgress::Over => self.patient(response.chunk()).await?,
                // Only the token usage is missing, so a timeout or connection error no longer invalidates the reply.
                DecodeProgress::Whole => {
                    match tokio::time::timeout(self.patience.trailing, response.chunk()).await {
                        Ok(next @ Ok(_)) => next,
                        Ok(Err(_)) | Err(_) => break,
                    }
                }
            };
            match next {
                Ok(Some(bytes)) => progress = hearing.feed(&bytes, said)?,
                Ok(None) => break,
                Err(error) => {
                    return Err(broken(format!("the answer broke off: {}", connect::deepest(&error))));
                }
            }
        }
        Ok(hearing.end(fresh_id, said)?)
    }

    /// The error for a refusal, with as much of its body as can be read.
    async fn refused(&self, mut response: Response) -> ExchangeError {
        let status = response.status().as_u16();
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let (wait, moved) = (refusal::asked_wait(header), header("location"));
        let mut body = Vec::new();
        while body.len() < MOST_OF_REFUSAL {
            match self.patient(response.chunk()).await {
                Ok(Ok(Some(bytes))) => body.extend_from_slice(&bytes),
                Ok(Ok(None) | Err(_)) | Err(_) => break,
            }
        }
        let body = moved.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
        ExchangeError::Refused { status, body, wait }
    }

    fn judged(&mut self, verdict: ErrorVerdict, ResponseStatus(status): ResponseStatus) -> AttemptFailure {
        let url = self.endpoint.completions().to_string();
        match verdict {
            ErrorVerdict::NotFound { message } => {
                if self.endpoint.next() {
                    return AttemptFailure::Otherwise;
                }
                self.endpoint.reset();
                AttemptFailure::Final(ModelError::NotFound { url, status, message: self.struck(&message) })
            }
            ErrorVerdict::Again { why, wait, limited } => AttemptFailure::Again { why, wait, limited },
            ErrorVerdict::Final(error) => AttemptFailure::Final(self.struck_error(error)),
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
                let message = self.struck(&message);
                AttemptFailure::Final(ModelError::Unauthorised { status, message, advice })
            }
            ErrorVerdict::UnknownModel { message } => {
                let (model, message) = (self.model.name.clone(), self.struck(&message));
                let advice = self.advice_on_models();
                AttemptFailure::Final(ModelError::UnknownModel { model, message, advice })
            }
            ErrorVerdict::Dialect(FieldSupport::NoUsage) if self.spelling.usage == UsageField::Yes => {
                self.spelling.usage = UsageField::No;
                AttemptFailure::Otherwise
            }
            ErrorVerdict::Dialect(FieldSupport::MaxCompletionTokens)
                if self.spelling.most == MaxTokensField::MaxTokens =>
            {
                self.spelling.most = MaxTokensField::MaxCompletionTokens;
                AttemptFailure::Otherwise
            }
            ErrorVerdict::Dialect(dialect) => {
                let message = format!("it refuses {dialect:?} and what it wants instead");
                AttemptFailure::Final(ModelError::Refused { status, message })
            }
        }
    }

    /// Similar names from the server's list of models, which is requested only here and with a short timeout.
    fn advice_on_models(&self) -> String {
        let mut asking = self.http.get(self.endpoint.models());
        if let Some(authorization) = &self.authorization {
            asking = asking.header(AUTHORIZATION, authorization.clone());
        }
        let listing = async {
            let mut response = asking.send().await.ok()?.error_for_status().ok()?;
            let mut body = Vec::new();
            while let Some(bytes) = response.chunk().await.ok()? {
                body.extend_from_slice(&bytes);
                if body.len() > MOST_OF_LIST {
                    return None;
                }
            }
            let list: Value = serde_json::from_slice(&body).ok()?;
            let ids =
                list["data"].as_array()?.iter().filter_map(|model| model["id"].as_str().map(str::to_owned));
            Some(ids.collect::<Vec<String>>())
        };
        let bounded = async { tokio::time::timeout(BRIEFLY, listing).await.ok().flatten() };
        let names = self.runtime.block_on(until(&self.stop, bounded)).ok().flatten().unwrap_or_default();
        if let Some(near) = nearest(&self.model.name, names.iter().map(String::as_str)) {
            return format!("did you mean {near:?}? Set model.name, or ABIDE_MODEL");
        }
        if names.is_empty() {
            return "check model.name, or ABIDE_MODEL".to_owned();
        }
        let more = if names.len() > SOME { ", …" } else { "" };
        let some: Vec<String> = names.into_iter().take(SOME).collect();
        format!("it has {}{more}; set model.name, or ABIDE_MODEL", some.join(", "))
    }

    /// Waits with the idle timeout.
    async fn patient<T>(&self, waited: impl Future<Output = T>) -> Result<T, ExchangeError> {
        let idle = self.patience.idle;
        let silent =
            |_| broken(format!("the server said nothing for {} s (model.timeout_sec)", idle.as_secs_f64()));
        tokio::time::timeout(idle, waited).await.map_err(silent)
    }

    fn unreachable(&self, error: &reqwest::Error) -> ExchangeError {
        match connect::why_not(&self.endpoint.completions(), error) {
            ConnectFailure::Hopeless(reason) => ExchangeError::Hopeless(reason),
            ConnectFailure::Passing(reason) => broken(reason),
        }
    }

    fn struck(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.struck_from(text))
    }

    fn struck_error(&self, error: ModelError) -> ModelError {
        match error {
            ModelError::ContextLength { message } => {
                ModelError::ContextLength { message: self.struck(&message) }
            }
            ModelError::Quota { message } => ModelError::Quota { message: self.struck(&message) },
            ModelError::Refused { status, message } => {
                ModelError::Refused { status, message: self.struck(&message) }
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
    Fault(DecodeFault),
    Refused { status: u16, body: String, wait: Option<Duration> },
    Hopeless(String),
}

struct ResponseStatus(u16);

/// Maximum number of bytes of a refusal.
const MOST_OF_REFUSAL: usize = 64 << 10;
/// Maximum number of bytes of a list of models.
const MOST_OF_LIST: usize = 4 << 20;
/// Timeout of the request for the list of models.
const BRIEFLY: Duration = Duration::from_secs(5);
/// Maximum number of suggested models.
const SOME: usize = 8;

impl From<DecodeFault> for ExchangeError {
    fn from(fault: DecodeFault) -> Self {
        Self::Fault(fault)
    }
}

fn broken(why: String) -> ExchangeError {
    ExchangeError::Fault(DecodeFault::Broken(why))
}

/// Whether the response is an HTML page, so that the server is not a model server.
fn is_page(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/html"))
}

fn fresh_id() -> String {
    format!("call_{}", clock::fresh(16))
}

/// The interrupt flag was set.
struct StopRequested;

/// Waits for a future or for the interrupt flag.
async fn until<T>(stop: &AtomicBool, waited: impl Future<Output = T>) -> Result<T, StopRequested> {
    let raised = async {
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(GLANCE).await;
        }
    };
    tokio::select! {
        biased;
        () = raised => Err(StopRequested),
        done = waited => Ok(done),
    }
}

/// Polling interval of the interrupt flag.
const GLANCE: Duration = Duration::from_millis(20);
