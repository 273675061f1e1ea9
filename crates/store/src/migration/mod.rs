//! Numbered schema migrations, each applied once and never edited after its release.
//!
//! The migrations are SQL files, in one folder per kind of database. The databases apply them in their own way. A
//! migration can also re-encode the stored values (`reencode.rs`).

mod first_names;
pub(crate) mod reencode;

use abide_ports::store::StoreError;

#[derive(Debug)]
pub(crate) struct SchemaMigration {
    /// Counted from 1.
    pub(crate) number: i64,
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
    /// The work after the SQL, in the same transaction.
    pub(crate) values: StoredValues,
}

/// The effect of a migration on stored events and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredValues {
    Unchanged,
    /// All events and bodies are re-encoded, and the checksums are recomputed.
    Reencoded,
}

/// A migration that is recorded in a database.
#[derive(Debug)]
pub(crate) struct AppliedMigration {
    pub(crate) number: i64,
    pub(crate) name: String,
    pub(crate) checksum: i64,
}

impl SchemaMigration {
    /// The checksum of the SQL text, which detects edits.
    pub(crate) fn checksum(&self) -> i64 {
        i64::from(crc32fast::hash(self.sql.as_bytes()))
    }
}

/// The migrations that are not applied yet.
pub(crate) fn pending<'a>(
    steps: &'a [SchemaMigration],
    applied: &[AppliedMigration],
) -> Result<&'a [SchemaMigration], StoreError> {
    let mismatched = |reason| Err(StoreError::IncompatibleVersion { reason });
    for (place, taken) in applied.iter().enumerate() {
        let Some(step) = steps.get(place) else {
            let newest = steps.len();
            return mismatched(format!(
                "it was written by a newer Abide (it has migration {} \"{}\", this program knows {newest}); \
                 use that version or a later one",
                taken.number, taken.name
            ));
        };
        if (taken.number, taken.name.as_str()) != (step.number, step.name) {
            return mismatched(format!(
                "it has migration {} \"{}\" where this program has {} \"{}\"",
                taken.number, taken.name, step.number, step.name
            ));
        }
        if taken.checksum != step.checksum() {
            return mismatched(format!(
                "migration {} \"{}\" was edited after it had been applied",
                step.number, step.name
            ));
        }
    }
    Ok(&steps[applied.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [SchemaMigration; 2] = [
        SchemaMigration { number: 1, name: "one", sql: "create one", values: StoredValues::Unchanged },
        SchemaMigration { number: 2, name: "two", sql: "create two", values: StoredValues::Unchanged },
    ];

    fn applied(step: &SchemaMigration) -> AppliedMigration {
        AppliedMigration { number: step.number, name: step.name.to_owned(), checksum: step.checksum() }
    }

    #[test]
    fn unapplied_migrations_are_pending() {
        assert_eq!(pending(&STEPS, &[]).unwrap().len(), 2);
        assert_eq!(pending(&STEPS, &[applied(&STEPS[0])]).unwrap()[0].number, 2);
        assert!(pending(&STEPS, &[applied(&STEPS[0]), applied(&STEPS[1])]).unwrap().is_empty());
    }

    #[test]
    fn an_edited_or_unknown_past_is_refused() {
        let edited = AppliedMigration { checksum: 7, ..applied(&STEPS[0]) };
        let renamed = AppliedMigration { name: "uno".to_owned(), ..applied(&STEPS[0]) };
        for past in [vec![edited], vec![renamed], vec![applied(&STEPS[1])]] {
            assert!(matches!(pending(&STEPS, &past), Err(StoreError::IncompatibleVersion { .. })));
        }
        let newer = pending(&STEPS[..1], &[applied(&STEPS[0]), applied(&STEPS[1])]).unwrap_err().to_string();
        assert!(newer.contains("newer Abide"), "{newer}");
    }
}
