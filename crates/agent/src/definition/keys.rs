//! The API keys of model servers: the variables that hold them, and the values that tools and the journal must not see.

use super::{
    AgentDefinition,
    load::{API_KEY_VARIABLE, EnvironmentLookup},
};

/// All model keys in the environment, whether or not they are sent.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelKeys {
    variables: Vec<String>,
    values: Vec<String>,
}

/// In bytes. Shorter values are placeholders such as `none` or `EMPTY`, which may occur in other variables.
const MIN_KEY_BYTES: usize = 6;
/// In bytes. Values of at least this length are also searched inside other texts.
const MIN_SEARCHED_KEY_BYTES: usize = 8;

impl AgentDefinition {
    /// The keys in the variables that the definition names, and in Abide's own variable.
    pub fn keys(&self, environment: EnvironmentLookup<'_>) -> ModelKeys {
        let named = self.key_variable.iter().chain(&self.model.api_key_env);
        let variables: Vec<String> = named.cloned().chain([API_KEY_VARIABLE.to_owned()]).collect();
        let mut values: Vec<String> =
            variables.iter().filter_map(|name| environment(name)).map(|key| key.trim().to_owned()).collect();
        values.retain(|key| key.len() >= MIN_KEY_BYTES);
        ModelKeys { variables, values }
    }
}

impl ModelKeys {
    /// Whether a variable must be withheld from tools: it holds a key, or its value contains one.
    pub fn must_withhold(&self, name: &str, value: &str) -> bool {
        let is_held = |key: &String| {
            value.trim() == key || (key.len() >= MIN_SEARCHED_KEY_BYTES && value.contains(key))
        };
        self.variables.iter().any(|variable| variable == name) || self.values.iter().any(is_held)
    }

    /// The keys that are removed from texts.
    pub fn redacted_values(&self) -> Vec<String> {
        self.values.iter().filter(|key| key.len() >= MIN_SEARCHED_KEY_BYTES).cloned().collect()
    }
}

impl std::fmt::Debug for ModelKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModelKeys(*** from {})", self.variables.join(", "))
    }
}
