//! Asking a model: one request after the other, each tried until there is a whole answer or no point in trying.
//!
//! It looks synchronous and is: a runtime of one thread hides inside, so that a wait can be bounded and interrupted. The
//! flag is looked at often enough for a person who pressed ctrl-c.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::Value;

use super::{
    connect::{self, WhyNot},
    endpoint::Endpoint,
    error::ModelError,
    hearing::{Fault, Hearing, MOST_BYTES, Progress},
    key::ApiKey,
    patience::Patience,
    refusal::{self, Dialect, Limited, Verdict},
    reply::{Piece, Reply},
    request::{AskUsage, MostTokens, Request, Spelling},
};
use crate::{
    clock,
    definition::{ModelConfig, nearest},
};

/// A connection to a model server.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    http: reqwest::Client,
    endpoint: Endpoint,
    model: ModelConfig,
    key: Option<ApiKey>,
    authorization: Option<HeaderValue>,
    patience: Patience,
    spelling: Spelling,
    stop: Arc<AtomicBool>,
}

/// Why one attempt gave no answer.
enum Failed {
    Final(ModelError),
    Again {
        why: String,
        wait: Option<Duration>,
        limited: Limited,
    },
    /// Ask at once in another way: it was the form that was refused.
    Otherwise,
}

impl Client {
    /// A client for this model. Whatever waits in it ends soon after `stop` is set. Nothing is sent yet.
    pub fn new(model: &ModelConfig, key: Option<ApiKey>, stop: Arc<AtomicBool>) -> Result<Self, ModelError> {
        let wrong =
            |error: String| ModelError::Config(format!("model.base_url {:?}: {error}", model.base_url));
        let endpoint = Endpoint::parse(&model.base_url).map_err(wrong)?;
        let authorization =
            key.as_ref().map(connect::authorization).transpose().map_err(ModelError::Config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ModelError::Config(format!("no runtime: {error}")))?;
        let patience = Patience::of(model);
        let http = connect::http(&endpoint, &patience).map_err(ModelError::Config)?;
        Ok(Self {
            runtime,
            http,
            endpoint,
            model: model.clone(),
            key,
            authorization,
            patience,
            spelling: Spelling { usage: AskUsage::Yes, most: MostTokens::MaxTokens },
            stop,
        })
    }

    /// The same with other waits.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Asks for an answer and waits until there is a whole one. What comes meanwhile is told to `said`, retries included.
    pub fn ask(
        &mut self,
        request: &Request<'_>,
        said: &mut dyn FnMut(Piece<'_>),
    ) -> Result<Reply, ModelError> {
        let mut waits = self.patience.waits();
        let mut attempt = 1;
        loop {
            let (why, asked, limited) = match self.attempt(request, said) {
                Ok(reply) => return Ok(reply),
                Err(Failed::Final(error)) => return Err(error),
                Err(Failed::Otherwise) => continue,
                Err(Failed::Again { why, wait, limited }) => (self.struck(&why), wait, limited),
            };
            let longest = self.patience.longest_asked;
            let too_long = asked.filter(|wait| *wait > longest);
            if attempt > self.patience.retries || too_long.is_some() {
                let asks = |wait: Duration| format!("{why}, and it asks to wait {} s", wait.as_secs());
                let message = too_long.map_or_else(|| why.clone(), asks);
                return Err(match limited {
                    Limited::Yes => ModelError::RateLimited { attempts: attempt, message },
                    Limited::No => ModelError::Unavailable { attempts: attempt, message },
                });
            }
            let wait = asked.or_else(|| waits.next()).unwrap_or(self.patience.longest_wait);
            attempt += 1;
            said(Piece::Retry { attempt, of: self.patience.retries + 1, wait, why: &why });
            // The sleep is made inside: its clock is the runtime's.
            let slept = self.runtime.block_on(until(&self.stop, async { tokio::time::sleep(wait).await }));
            slept.map_err(|Stopped| ModelError::Interrupted)?;
        }
    }

    fn attempt(&mut self, request: &Request<'_>, said: &mut dyn FnMut(Piece<'_>)) -> Result<Reply, Failed> {
        let body = request.body(&self.model, self.spelling);
        let stop = Arc::clone(&self.stop);
        let outcome = self.runtime.block_on(until(&stop, self.exchange(body, said)));
        match outcome {
            Err(Stopped) => Err(Failed::Final(ModelError::Interrupted)),
            Ok(Ok(reply)) => {
                self.endpoint.keep();
                Ok(reply)
            }
            Ok(Err(Trouble::Fault(Fault::Broken(why)))) => {
                Err(Failed::Again { why, wait: None, limited: Limited::No })
            }
            Ok(Err(Trouble::Fault(Fault::TooLarge))) => {
                Err(Failed::Final(ModelError::TooLarge { most: MOST_BYTES }))
            }
            Ok(Err(Trouble::Fault(Fault::Told(value)))) => {
                Err(self.judged(refusal::judge_told(&value), Status(200)))
            }
            Ok(Err(Trouble::Refused { status, body, wait })) => {
                Err(self.judged(refusal::judge(status, &body, wait), Status(status)))
            }
            Ok(Err(Trouble::Hopeless(message))) => {
                Err(Failed::Final(ModelError::Config(self.struck(&message))))
            }
        }
    }

    /// One request and its answer.
    async fn exchange(&self, body: String, said: &mut dyn FnMut(Piece<'_>)) -> Result<Reply, Trouble> {
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

    async fn hear(&self, mut response: Response, said: &mut dyn FnMut(Piece<'_>)) -> Result<Reply, Trouble> {
        let mut hearing = Hearing::default();
        let mut progress = Progress::Open;
        while progress != Progress::Over {
            let next = match progress {
                Progress::Open | Progress::Over => self.patient(response.chunk()).await?,
                // Only the cost is missing: neither a silent nor a broken connection spoils the answer now.
                Progress::Whole => match tokio::time::timeout(self.patience.trailing, response.chunk()).await
                {
                    Ok(next @ Ok(_)) => next,
                    Ok(Err(_)) | Err(_) => break,
                },
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

    /// A refusal with what the server writes about it, as far as it writes anything.
    async fn refused(&self, mut response: Response) -> Trouble {
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
        Trouble::Refused { status, body, wait }
    }

    fn judged(&mut self, verdict: Verdict, Status(status): Status) -> Failed {
        let url = self.endpoint.completions().to_string();
        match verdict {
            Verdict::NotFound { message } => {
                if self.endpoint.next() {
                    return Failed::Otherwise;
                }
                self.endpoint.reset();
                Failed::Final(ModelError::NotFound { url, status, message: self.struck(&message) })
            }
            Verdict::Again { why, wait, limited } => Failed::Again { why, wait, limited },
            Verdict::Final(error) => Failed::Final(self.struck_error(error)),
            Verdict::Unauthorised { message } => {
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
                Failed::Final(ModelError::Unauthorised { status, message, advice })
            }
            Verdict::UnknownModel { message } => {
                let (model, message) = (self.model.name.clone(), self.struck(&message));
                let advice = self.advice_on_models();
                Failed::Final(ModelError::UnknownModel { model, message, advice })
            }
            Verdict::Dialect(Dialect::NoUsage) if self.spelling.usage == AskUsage::Yes => {
                self.spelling.usage = AskUsage::No;
                Failed::Otherwise
            }
            Verdict::Dialect(Dialect::MaxCompletionTokens) if self.spelling.most == MostTokens::MaxTokens => {
                self.spelling.most = MostTokens::MaxCompletionTokens;
                Failed::Otherwise
            }
            Verdict::Dialect(dialect) => {
                let message = format!("it refuses {dialect:?} and what it wants instead");
                Failed::Final(ModelError::Refused { status, message })
            }
        }
    }

    /// What could be meant by a model that is not there. The server's list is only asked for here, and briefly.
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

    /// Waits for something for as long as a server may be silent.
    async fn patient<T>(&self, waited: impl Future<Output = T>) -> Result<T, Trouble> {
        let idle = self.patience.idle;
        let silent =
            |_| broken(format!("the server said nothing for {} s (model.timeout_sec)", idle.as_secs_f64()));
        tokio::time::timeout(idle, waited).await.map_err(silent)
    }

    fn unreachable(&self, error: &reqwest::Error) -> Trouble {
        match connect::why_not(&self.endpoint.completions(), error) {
            WhyNot::Hopeless(reason) => Trouble::Hopeless(reason),
            WhyNot::Passing(reason) => broken(reason),
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

/// What went wrong in an exchange.
enum Trouble {
    Fault(Fault),
    Refused { status: u16, body: String, wait: Option<Duration> },
    Hopeless(String),
}

struct Status(u16);

/// A refusal is read no further than this.
const MOST_OF_REFUSAL: usize = 64 << 10;
/// A list of models is read no further than this.
const MOST_OF_LIST: usize = 4 << 20;
/// How long the list of models may take.
const BRIEFLY: Duration = Duration::from_secs(5);
/// How many models are named.
const SOME: usize = 8;

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn broken(why: String) -> Trouble {
    Trouble::Fault(Fault::Broken(why))
}

/// Whether a page for people came: whatever is there, it is no model server.
fn is_page(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("text/html"))
}

fn fresh_id() -> String {
    format!("call_{}", clock::fresh(16))
}

/// The flag was raised.
struct Stopped;

/// Waits for something, or for the flag.
async fn until<T>(stop: &AtomicBool, waited: impl Future<Output = T>) -> Result<T, Stopped> {
    let raised = async {
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(GLANCE).await;
        }
    };
    tokio::select! {
        biased;
        () = raised => Err(Stopped),
        done = waited => Ok(done),
    }
}

/// How often the flag is looked at.
const GLANCE: Duration = Duration::from_millis(20);
