-- A checksum of this entry and all before it, so that a journal can be compared with its witness at any position.
-- Entries that were there before this step have none.
ALTER TABLE journal ADD COLUMN chain INTEGER;
