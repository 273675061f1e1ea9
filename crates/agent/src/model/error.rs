//! Errors of the model client, by the possible reaction. No message contains a key.

/// The reason why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The configuration is unusable: an invalid base URL, or a key that is not a valid header value.
    #[error("{0}")]
    Config(String),
    /// 401 or 403: the key is missing, wrong or has no permission.
    #[error("the model server refused the key ({status}): {message}; {advice}")]
    Unauthorised { status: u16, message: String, advice: String },
    /// The model does not exist.
    #[error("the model server has no model {model:?}: {message}; {advice}")]
    UnknownModel { model: String, message: String, advice: String },
    /// The server at this URL has no chat completions.
    #[error(
        "no chat completions at {url} ({status}): {message}; check model.base_url, or ABIDE_MODEL_BASE_URL"
    )]
    NotFound { url: String, status: u16, message: String },
    /// The conversation exceeds the model's context: shorten it and retry.
    #[error("the conversation is longer than the model's context window: {message}")]
    ContextLength { message: String },
    /// Another refusal for which a retry is pointless.
    #[error("the model server refused the request ({status}): {message}")]
    Refused { status: u16, message: String },
    /// The account has no quota left, so waiting does not help.
    #[error("the account has no quota left: {message}; add credit, or choose another model or key")]
    Quota { message: String },
    /// All attempts were rate-limited, or the server requests a wait longer than `max_retry_after`.
    #[error(
        "the model server limits the rate ({attempts} attempts): {message}; run the same command again later"
    )]
    RateLimited { attempts: u32, message: String },
    /// All attempts failed with transient errors.
    #[error(
        "no complete answer after {attempts} attempts: {message}; run the same command again to continue"
    )]
    Unavailable { attempts: u32, message: String },
    /// The reply exceeds the size limit.
    #[error("the answer is longer than {max_bytes} bytes; set model.max_output_tokens")]
    TooLarge { max_bytes: usize },
    /// The interrupt flag was set.
    #[error("interrupted")]
    Interrupted,
}
