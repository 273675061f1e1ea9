//! What goes wrong with a model, by what can be done about it. No message holds a key.

/// No answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The definition cannot work: a base URL that is none, a key that no header can carry.
    #[error("{0}")]
    Config(String),
    /// 401 or 403: the key is missing, wrong, or not allowed to do this.
    #[error("the model server refused the key ({status}): {message}; {advice}")]
    Unauthorised { status: u16, message: String, advice: String },
    /// There is no model of this name.
    #[error("the model server knows no model {model:?}: {message}; {advice}")]
    UnknownModel { model: String, message: String, advice: String },
    /// Nothing that speaks chat completions is at this address.
    #[error(
        "no chat completions at {url} ({status}): {message}; check model.base_url, or ABIDE_MODEL_BASE_URL"
    )]
    NotFound { url: String, status: u16, message: String },
    /// The conversation is longer than the model's window: compact it and ask again.
    #[error("the conversation is longer than the model's window: {message}")]
    ContextLength { message: String },
    /// Another refusal that would be the same again.
    #[error("the model server refused the request ({status}): {message}")]
    Refused { status: u16, message: String },
    /// The account has nothing left; waiting does not help.
    #[error("the account has no quota left: {message}; add credit, or choose another model or key")]
    Quota { message: String },
    /// Every attempt was rate-limited, or the server asks for a longer wait than is sensible here.
    #[error(
        "the model server limits the rate ({attempts} attempts): {message}; run the same command again later"
    )]
    RateLimited { attempts: u32, message: String },
    /// Every attempt failed in a way that another might not have.
    #[error("no whole answer after {attempts} attempts: {message}; run the same command again to go on")]
    Unavailable { attempts: u32, message: String },
    /// An answer without end.
    #[error("the answer is longer than {most} bytes; set model.max_output_tokens")]
    TooLarge { most: usize },
    /// The flag was raised.
    #[error("interrupted")]
    Interrupted,
}
