-- Conventional names of columns and indexes. The migration also re-encodes all events and bodies, whose fields are
-- renamed in the same way (migration/first_names.rs).

ALTER TABLE journal RENAME COLUMN fresh TO id_seed;

-- The chained checksum of a migrated entry before the migration, for witnesses that were written before it.
ALTER TABLE journal ADD COLUMN chain_before_names BIGINT;

ALTER INDEX journal_of_run RENAME TO journal_by_run;

-- Whether the run holds a slot or waits for one (1), has pending effects (2), or both (3). NULL stands for neither.
ALTER TABLE runs RENAME COLUMN astir TO activity;
ALTER INDEX runs_astir RENAME TO runs_by_activity;

-- Whether the delivery failed and its single retry has not been used.
ALTER TABLE deliveries RENAME COLUMN waiting TO retry_pending;
ALTER INDEX deliveries_waiting RENAME TO deliveries_retry_pending;

-- No program stored a position here.
DROP TABLE cursors;
