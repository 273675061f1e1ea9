//! The keys of model servers: which variables hold them, and what tools and the journal must not see.

use super::{
    AgentDefinition,
    load::{API_KEY_VARIABLE, EnvironmentLookup},
};

/// The keys that the environment has for models, whether one of them is sent or not.
#[derive(Clone, PartialEq, Eq)]
pub struct ModelKeys {
    variables: Vec<String>,
    values: Vec<String>,
}

/// A value of fewer characters is no key but a filler such as `none` or `EMPTY`, which may stand in other variables for
/// other reasons.
const SHORTEST_KEY: usize = 6;
/// A value of so many characters is looked for inside of other texts too.
const SHORTEST_PART: usize = 8;

impl AgentDefinition {
    /// The keys that are named by the definition or by Abide's own variable.
    pub fn keys(&self, environment: EnvironmentLookup<'_>) -> ModelKeys {
        let named = self.key_variable.iter().chain(&self.model.api_key_env);
        let variables: Vec<String> = named.cloned().chain([API_KEY_VARIABLE.to_owned()]).collect();
        let mut values: Vec<String> =
            variables.iter().filter_map(|name| environment(name)).map(|key| key.trim().to_owned()).collect();
        values.retain(|key| key.len() >= SHORTEST_KEY);
        ModelKeys { variables, values }
    }
}

impl ModelKeys {
    /// Whether tools must not have this variable: it names a key, or has one as its value or in it.
    pub fn are_in(&self, name: &str, value: &str) -> bool {
        let is_held =
            |key: &String| value.trim() == key || (key.len() >= SHORTEST_PART && value.contains(key));
        self.variables.iter().any(|variable| variable == name) || self.values.iter().any(is_held)
    }

    /// The keys that are to be struck out of texts.
    pub fn to_strike(&self) -> Vec<String> {
        self.values.iter().filter(|key| key.len() >= SHORTEST_PART).cloned().collect()
    }
}

impl std::fmt::Debug for ModelKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModelKeys(*** from {})", self.variables.join(", "))
    }
}
