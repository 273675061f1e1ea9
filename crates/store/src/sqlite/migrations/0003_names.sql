-- Conventional names of columns, tables and indexes. The migration also re-encodes all events and bodies, whose fields
-- are renamed in the same way (migration/first_names.rs).

ALTER TABLE journal RENAME COLUMN fresh TO id_seed;

-- The chained checksum of a migrated entry before the migration, for witnesses that were written before it.
ALTER TABLE journal ADD COLUMN chain_before_names INTEGER;

DROP INDEX journal_births;
CREATE INDEX journal_first_entries ON journal (run_id) WHERE revision = 1;

-- The entries of each run up to `journal_by_run_end`. Later ones are at the end of the journal.
ALTER TABLE journal_of_run RENAME TO journal_by_run;
ALTER TABLE journal_filed RENAME TO journal_by_run_end;
ALTER TABLE journal_by_run_end RENAME COLUMN up_to TO seq;

-- Whether the run holds a slot or waits for one (1), has pending effects (2), or both (3). NULL stands for neither.
ALTER TABLE runs RENAME COLUMN astir TO activity;
DROP INDEX runs_astir;
CREATE INDEX runs_by_activity ON runs (activity, run_id) WHERE activity IS NOT NULL;

-- Whether the delivery failed and its single retry has not been used.
ALTER TABLE deliveries RENAME COLUMN waiting TO retry_pending;
DROP INDEX deliveries_waiting;
CREATE INDEX deliveries_retry_pending ON deliveries (conversation_ref, run_id) WHERE retry_pending = 1;

-- No program stored a position here.
DROP TABLE cursors;
