-- A checksum of this entry and all before it, so that a journal can be compared with its witness at any position.
-- Entries that were there before this step have none. The head repeats that of its entry.
ALTER TABLE journal ADD COLUMN chain BIGINT;
ALTER TABLE head ADD COLUMN chain BIGINT NOT NULL DEFAULT 0;

-- What is known of the store as a whole. Its id tells its witness from those of other stores.
CREATE TABLE meta (
    key TEXT COLLATE "C" PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO meta (key, value) VALUES ('id', md5(random()::text || clock_timestamp()::text || pg_backend_pid()::text));
