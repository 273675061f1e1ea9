-- The journal is the truth; all other tables are derived from it in the same transaction.
-- Columns repeat what `body` says, to search by. Never edit this file: add the next one.

-- Text is compared byte by byte, as in the program.

-- Whoever writes locks this one row first and keeps it until the commit, so the sequence is the order of commits
-- however many daemons write.
CREATE TABLE head (
    singleton BOOLEAN PRIMARY KEY DEFAULT true CHECK (singleton),
    seq BIGINT NOT NULL
);
INSERT INTO head (seq) VALUES (0);

CREATE TABLE journal (
    seq BIGINT PRIMARY KEY,
    run_id TEXT COLLATE "C" NOT NULL,
    revision BIGINT NOT NULL,
    at BIGINT NOT NULL,
    fresh TEXT NOT NULL,
    event TEXT NOT NULL,
    checksum BIGINT NOT NULL
);
CREATE INDEX journal_of_run ON journal (run_id, seq);

CREATE TABLE runs (
    run_id TEXT COLLATE "C" PRIMARY KEY,
    revision BIGINT NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    deadline_at BIGINT,
    -- Whether it holds a slot or waits for one (1), owes an order (2), or both (3).
    astir BIGINT,
    body TEXT NOT NULL
);
CREATE INDEX runs_by_status ON runs (status, run_id);
CREATE INDEX runs_due ON runs (deadline_at, run_id) WHERE deadline_at IS NOT NULL;
CREATE INDEX runs_astir ON runs (astir, run_id) WHERE astir IS NOT NULL;

CREATE TABLE inbound (
    channel TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (channel, message_id)
);
CREATE INDEX inbound_of_run ON inbound (run_id);

CREATE TABLE turns (
    turn_id TEXT COLLATE "C" PRIMARY KEY,
    run_id TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX turns_of_run ON turns (run_id, turn_id);

CREATE TABLE interactions (
    interaction_id TEXT COLLATE "C" PRIMARY KEY,
    run_id TEXT COLLATE "C" NOT NULL,
    open BOOLEAN NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX interactions_of_run ON interactions (run_id, interaction_id);
CREATE INDEX interactions_open ON interactions (interaction_id) WHERE open;

CREATE TABLE deliveries (
    delivery_id TEXT COLLATE "C" PRIMARY KEY,
    run_id TEXT COLLATE "C" NOT NULL,
    conversation_ref TEXT COLLATE "C" NOT NULL,
    waiting BOOLEAN NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX deliveries_of_run ON deliveries (run_id, delivery_id);
CREATE INDEX deliveries_waiting ON deliveries (conversation_ref, run_id) WHERE waiting;

CREATE TABLE claims (
    scope TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    fingerprint TEXT NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX claims_of_run ON claims (run_id);

CREATE TABLE cursors (
    reader TEXT COLLATE "C" PRIMARY KEY,
    seq BIGINT NOT NULL
);
