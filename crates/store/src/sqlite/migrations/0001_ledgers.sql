-- The journal is the truth; all other tables are derived from it in the same transaction.
-- Columns repeat what `body` says, to search by. Never edit this file: add the next one.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE journal (
    seq INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    at INTEGER NOT NULL,
    fresh TEXT NOT NULL,
    event TEXT NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;
-- Every run begins with one of these.
CREATE INDEX journal_births ON journal (run_id) WHERE revision = 1;

-- Which entries are a run's. An index would dirty one page for each run in every transaction; this is written for
-- many entries at once, and what is not filed yet is at the end of the journal.
CREATE TABLE journal_of_run (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE journal_filed (up_to INTEGER NOT NULL) STRICT;
INSERT INTO journal_filed (up_to) VALUES (0);

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    status TEXT NOT NULL,
    deadline_at INTEGER,
    -- Whether it holds a slot or waits for one (1), owes an order (2), or both (3).
    astir INTEGER,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX runs_by_status ON runs (status, run_id);
CREATE INDEX runs_due ON runs (deadline_at, run_id) WHERE deadline_at IS NOT NULL;
CREATE INDEX runs_astir ON runs (astir, run_id) WHERE astir IS NOT NULL;

CREATE TABLE inbound (
    channel TEXT NOT NULL,
    message_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (channel, message_id)
) STRICT;
CREATE INDEX inbound_of_run ON inbound (run_id);

CREATE TABLE turns (
    turn_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX turns_of_run ON turns (run_id, turn_id);

CREATE TABLE interactions (
    interaction_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    open INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX interactions_of_run ON interactions (run_id, interaction_id);
CREATE INDEX interactions_open ON interactions (interaction_id) WHERE open = 1;

CREATE TABLE deliveries (
    delivery_id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    conversation_ref TEXT NOT NULL,
    waiting INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX deliveries_of_run ON deliveries (run_id, delivery_id);
CREATE INDEX deliveries_waiting ON deliveries (conversation_ref, run_id) WHERE waiting = 1;

CREATE TABLE claims (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX claims_of_run ON claims (run_id);

CREATE TABLE cursors (
    reader TEXT PRIMARY KEY,
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
