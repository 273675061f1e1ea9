//! The known keys, derived from the schema of [`CliConfig`]: their kinds, their environment variables, and suggestions
//! for unknown names.

use abide_os::suggestion::nearest;
use schemars::{SchemaGenerator, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::Value;

use super::settings::CliConfig;

/// A key with its dotted name. The part `*` stands for a name chosen by the owner.
#[derive(Clone, Debug)]
pub(super) struct SettingKey {
    pub(super) name: String,
    pub(super) kind: SettingKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SettingKind {
    /// With at least `least` characters.
    Text {
        min: u64,
    },
    Choice(Vec<String>),
    /// Both bounds are inclusive.
    Number {
        least: u64,
        max: u64,
    },
    Boolean,
    /// A list of at least `least` strings.
    List {
        least: u64,
    },
    /// A table of strings.
    StringTable,
}

/// Meaning of a dotted name.
#[derive(Debug)]
pub(super) enum NameMeaning<'a> {
    Key(&'a SettingKey),
    Section,
    Unknown,
}

#[derive(Debug)]
pub(super) struct SettingKeys(Vec<SettingKey>);

/// Prefix of all environment variables.
pub(super) const VARIABLE_PREFIX: &str = "ABIDE_";

impl SettingKeys {
    pub(super) fn all() -> Self {
        let mut keys = Vec::new();
        collect_keys("", &schema(), &mut keys);
        Self(keys)
    }

    pub(super) fn resolve(&self, name: &str) -> NameMeaning<'_> {
        let parts: Vec<&str> = name.split('.').collect();
        let begins = |key: &&SettingKey| {
            let mut pattern = key.name.split('.');
            parts.iter().all(|part| pattern.next().is_some_and(|name| name == "*" || name == *part))
        };
        let mut matching = self.0.iter().filter(begins);
        match matching.next() {
            None => NameMeaning::Unknown,
            Some(key) if key.name.split('.').count() == parts.len() => NameMeaning::Key(key),
            Some(_) => NameMeaning::Section,
        }
    }

    /// Returns the dotted name that a variable sets. `engines` are the engine names known so far.
    pub(super) fn name_of_variable(&self, variable: &str, engines: &[String]) -> Option<String> {
        let candidates = self.0.iter().filter_map(|key| {
            let Some((before, after)) = key.name.split_once("*") else {
                let is_meant = variable_of(&key.name) == variable;
                return is_meant.then(|| (true, key.name.len(), key.name.clone()));
            };
            let written = variable.strip_prefix(&variable_of(before))?.strip_suffix(&upper(after))?;
            if written.is_empty() {
                return None;
            }
            // Upper case and underscores hide the spelling of a name, so known names are preferred.
            let engine = engines.iter().find(|name| upper(name) == written).cloned();
            let is_known = engine.is_some();
            let chosen = engine.unwrap_or_else(|| written.to_lowercase().replace('_', "-"));
            Some((is_known, after.len(), format!("{before}{chosen}{after}")))
        });
        // `…_PASS_ENV` also ends in `…_ENV`: a known engine is preferred, then the longer key.
        candidates.max_by_key(|(is_known, length, _)| (*is_known, *length)).map(|(_, _, name)| name)
    }

    /// Suggests a variable for an unknown one.
    pub(super) fn nearest_variable(&self, variable: &str, engines: &[String]) -> Option<String> {
        let names = self.0.iter().flat_map(|key| expand_engine_names(&key.name, engines));
        nearest(variable, names.map(|name| variable_of(&name)))
    }

    /// Suggests a dotted name for an unknown one.
    pub(super) fn nearest_name(&self, name: &str) -> Option<String> {
        let parts: Vec<&str> = name.split('.').collect();
        let candidates = self.0.iter().flat_map(|key| {
            let pattern: Vec<&str> = key.name.split('.').collect();
            let spelled: Vec<&str> = pattern
                .iter()
                .enumerate()
                .map(|(at, part)| if *part == "*" { parts.get(at).copied().unwrap_or("NAME") } else { *part })
                .collect();
            (1..=spelled.len()).map(move |length| spelled[..length].join(".")).collect::<Vec<_>>()
        });
        nearest(name, candidates).or_else(|| {
            // The section may be missing or wrong.
            let last = parts.last()?;
            self.0.iter().map(|key| &key.name).find(|name| name.rsplit('.').next() == Some(last)).cloned()
        })
    }
}

pub(super) fn variable_of(name: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", upper(name))
}

fn upper(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

fn expand_engine_names(name: &str, engines: &[String]) -> Vec<String> {
    if name.contains('*') {
        engines.iter().map(|engine| name.replace('*', engine)).collect()
    } else {
        vec![name.to_owned()]
    }
}

/// Returns the schema of the file. All keys are optional.
pub(super) fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let optional = RecursiveTransform(|schema: &mut schemars::Schema| {
        schema.remove("required");
    });
    let generator: SchemaGenerator = settings.with_transform(optional).into_generator();
    generator.into_root_schema_for::<CliConfig>().to_value()
}

fn collect_keys(name: &str, schema: &Value, keys: &mut Vec<SettingKey>) {
    let under = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    if let Some(properties) = schema["properties"].as_object() {
        for (part, schema) in properties {
            collect_keys(&under(part), schema, keys);
        }
    } else if schema["additionalProperties"]["properties"].is_object() {
        collect_keys(&under("*"), &schema["additionalProperties"], keys);
    } else {
        keys.push(SettingKey { name: name.to_owned(), kind: kind(schema) });
    }
}

fn kind(schema: &Value) -> SettingKind {
    let words = |list: &Value, of: fn(&Value) -> &Value| -> Option<Vec<String>> {
        list.as_array()?.iter().map(|word| of(word).as_str().map(str::to_owned)).collect()
    };
    let choice =
        words(&schema["enum"], |word| word).or_else(|| words(&schema["oneOf"], |word| &word["const"]));
    if let Some(words) = choice {
        return SettingKind::Choice(words);
    }
    let min = |bound: &str| schema[bound].as_u64().unwrap_or(0);
    match schema["type"].as_str() {
        Some("integer") => {
            SettingKind::Number { least: min("minimum"), max: schema["maximum"].as_u64().unwrap_or(u64::MAX) }
        }
        Some("boolean") => SettingKind::Boolean,
        Some("array") => SettingKind::List { least: min("minItems") },
        Some("object") => SettingKind::StringTable,
        Some(_) | None => SettingKind::Text { min: min("minLength") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_the_kind_that_its_field_has() {
        let lines: Vec<String> =
            SettingKeys::all().0.iter().map(|key| format!("{} {:?}", key.name, key.kind)).collect();
        expect_test::expect![[r#"
            engines.*.args List { least: 0 }
            engines.*.command List { least: 1 }
            engines.*.enabled Boolean
            engines.*.env StringTable
            engines.*.isolation Choice(["auto", "namespace", "landlock", "off"])
            engines.*.pass_env List { least: 0 }
            engines.*.protocol Choice(["acp"])
            http.allow_remote Boolean
            http.allowed_hosts List { least: 0 }
            http.max_body_bytes Number { least: 1024, max: 18446744073709551615 }
            http.max_connections Number { least: 1, max: 18446744073709551615 }
            http.max_streams Number { least: 0, max: 18446744073709551615 }
            http.requests_per_second Number { least: 0, max: 18446744073709551615 }
            limits.memory_max_bytes Number { least: 0, max: 18446744073709551615 }
            limits.min_free_bytes Number { least: 0, max: 18446744073709551615 }
            limits.pids_max Number { least: 0, max: 18446744073709551615 }
            listen Text { min: 0 }
            log.files Number { least: 1, max: 1000 }
            log.format Choice(["text", "json"])
            log.level Choice(["error", "warn", "info", "debug", "trace"])
            log.max_bytes Number { least: 4096, max: 18446744073709551615 }
            otel.endpoint Text { min: 0 }
            recovery.max_sec Number { least: 1, max: 18446744073709551615 }
            retention.every_sec Number { least: 1, max: 18446744073709551615 }
            retention.private_days Number { least: 0, max: 18446744073709551615 }
            retention.workspace_days Number { least: 0, max: 18446744073709551615 }
            sandbox.cgroup Text { min: 1 }
            sandbox.isolation Choice(["auto", "namespace", "landlock", "off"])
            slots.max_running Number { least: 1, max: 10000 }
            stall_after_sec Number { least: 1, max: 18446744073709551615 }
            store Text { min: 0 }
            terminal.housekeeping_ms Number { least: 0, max: 18446744073709551615 }
            terminal.idle_ms Number { least: 0, max: 18446744073709551615 }
            terminal.max_sessions Number { least: 0, max: 18446744073709551615 }
            terminal.remember_ms Number { least: 0, max: 18446744073709551615 }
            terminal.shell Text { min: 1 }
            terminal.spool_bytes Number { least: 0, max: 18446744073709551615 }"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn a_variable_of_an_engine_means_the_known_one_of_that_spelling() {
        let keys = SettingKeys::all();
        let engines = ["my_own".to_owned()];
        let of = |variable| keys.name_of_variable(variable, &engines);
        assert_eq!(of("ABIDE_SLOTS_MAX_RUNNING").as_deref(), Some("slots.max_running"));
        assert_eq!(of("ABIDE_ENGINES_MY_OWN_COMMAND").as_deref(), Some("engines.my_own.command"));
        assert_eq!(of("ABIDE_ENGINES_CODEX_ACP_ENV").as_deref(), Some("engines.codex-acp.env"));
        assert_eq!(of("ABIDE_ENGINES_CODEX_PASS_ENV").as_deref(), Some("engines.codex.pass_env"));
        assert_eq!(
            keys.name_of_variable("ABIDE_ENGINES_MY_PASS_ENV", &["my-pass".to_owned()]).as_deref(),
            Some("engines.my-pass.env")
        );
        assert_eq!(of("ABIDE_ENGINES_COMMAND"), None);
        assert_eq!(of("ABIDE_ENGINES"), None);
    }
}
