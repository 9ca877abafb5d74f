BEGIN TRANSACTION;
CREATE TABLE acceptances (
    run TEXT NOT NULL REFERENCES runs (id),
    device TEXT NOT NULL,
    PRIMARY KEY (run, device)
);
INSERT INTO "acceptances" VALUES('20231114-221420-874914','pi-1');
CREATE TABLE carried_work (
    run TEXT NOT NULL REFERENCES runs (id),
    device TEXT NOT NULL,
    round INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    base TEXT NOT NULL,
    encoding TEXT NOT NULL,
    PRIMARY KEY (run, device)
);
INSERT INTO "carried_work" VALUES('20231114-221420-874914','pi-4',1,1,1,'efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef','delta-int8');
CREATE TABLE devices (
    id TEXT NOT NULL,
    fleet TEXT NOT NULL,
    first_seen REAL NOT NULL,
    last_seen REAL NOT NULL,
    online INTEGER NOT NULL,
    version TEXT NOT NULL,
    tasks TEXT NOT NULL,
    invited INTEGER NOT NULL DEFAULT 0,
    accepted INTEGER NOT NULL DEFAULT 0,
    declined INTEGER NOT NULL DEFAULT 0,
    reported INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    late INTEGER NOT NULL DEFAULT 0,
    ignored INTEGER NOT NULL DEFAULT 0,
    last_reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (fleet, id)
);
INSERT INTO "devices" VALUES('pi-1','lab',1700000000.0,1700000000.0,1,'0.1.0','["digits"]',0,0,0,1,0,0,0,0,0,'');
INSERT INTO "devices" VALUES('pi-2','lab',1700000000.0,1700000000.0,1,'0.1.0','["digits"]',0,0,0,0,0,0,0,0,0,'');
CREATE TABLE holds (
    fleet TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('quarantined', 'drained')),
    reason TEXT NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (fleet, id, kind)
);
INSERT INTO "holds" VALUES('lab','pi-2','quarantined','damaged',1700000000.0);
CREATE TABLE leaders (fleet TEXT PRIMARY KEY NOT NULL, epoch BIGINT NOT NULL, holder TEXT NOT NULL);
CREATE TABLE masking (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    team INTEGER NOT NULL,
    step TEXT NOT NULL CHECK (step IN ('terms', 'roster', 'shares', 'masking', 'reported', 'reveal')),
    device TEXT NOT NULL,
    content BLOB NOT NULL,
    UNIQUE (run, round, team, step, device)
);
INSERT INTO "masking" VALUES(1,'20231114-221420-874914',2,0,'terms','',X'80');
CREATE TABLE offences (
    fleet TEXT NOT NULL,
    id TEXT NOT NULL,
    count INTEGER NOT NULL,
    last TEXT NOT NULL,
    PRIMARY KEY (fleet, id)
);
INSERT INTO "offences" VALUES('lab','pi-2',2,'damaged');
CREATE TABLE open_rounds (
    run TEXT PRIMARY KEY REFERENCES runs (id),
    round INTEGER NOT NULL,
    target INTEGER NOT NULL,
    invited TEXT NOT NULL,
    base TEXT NOT NULL,
    spent_s REAL NOT NULL,
    boot TEXT NOT NULL,
    uptime_s REAL NOT NULL,
    unix_s REAL NOT NULL,
    closing INTEGER NOT NULL DEFAULT 0,
    paused INTEGER NOT NULL DEFAULT 0
, encoding TEXT NOT NULL DEFAULT '', negotiated TEXT NOT NULL DEFAULT '{}', absent TEXT NOT NULL DEFAULT '[]', offenders TEXT NOT NULL DEFAULT '{}', departed TEXT NOT NULL DEFAULT '{}');
INSERT INTO "open_rounds" VALUES('20231114-221420-874914',2,2,'["pi-1", "pi-2", "pi-3"]','abababababababababababababababababababababababababababababababab',0.0,'boot',10.0,1700000070.0,0,0,'delta-int8','{"pi-2": "fp32"}','["pi-3"]','{"pi-2": "damaged"}','{"pi-3": ["lost", "offline"]}');
CREATE TABLE rounds (
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (run, round)
);
INSERT INTO "rounds" VALUES('20231114-221320-c4242e',1,'{"round": 1, "outcome": "aggregated", "cohort": 2, "accepted": 2, "declined": 0, "reported": 2, "user_accuracy": 0.6, "user_accuracy_min": null, "user_accuracy_after": null, "phase_seconds": {"select": 0.0, "recruit": 0.0, "download": 0.0, "train": 0.0, "upload": 0.0, "aggregate": 0.0}, "bytes_down": 0, "bytes_up": 0, "num_examples": 0, "decline_reasons": {}, "failures": {}, "refused": {}, "late": 0, "metric": "accuracy", "metric_goal": "max", "user_accuracy_p10": null, "user_accuracies": {}, "bounded": {}, "downloads": 0, "deadline_s": 0.0, "report_p90_s": null, "absent": {}, "needed": 0, "measured": 0, "offenders": {}, "bounded_devices": {}, "independent": {}, "pulls": {}, "pull_quantiles": {}, "privacy": {}, "train_loss": null, "user_accuracy_histogram": []}');
INSERT INTO "rounds" VALUES('20231114-221320-c4242e',2,'{"round": 2, "outcome": "aggregated", "cohort": 2, "accepted": 2, "declined": 0, "reported": 2, "user_accuracy": 0.7, "user_accuracy_min": null, "user_accuracy_after": null, "phase_seconds": {"select": 0.0, "recruit": 0.0, "download": 0.0, "train": 0.0, "upload": 0.0, "aggregate": 0.0}, "bytes_down": 0, "bytes_up": 0, "num_examples": 0, "decline_reasons": {}, "failures": {}, "refused": {}, "late": 0, "metric": "accuracy", "metric_goal": "max", "user_accuracy_p10": null, "user_accuracies": {}, "bounded": {}, "downloads": 0, "deadline_s": 0.0, "report_p90_s": null, "absent": {}, "needed": 0, "measured": 0, "offenders": {}, "bounded_devices": {}, "independent": {}, "pulls": {}, "pull_quantiles": {}, "privacy": {}, "train_loss": null, "user_accuracy_histogram": []}');
INSERT INTO "rounds" VALUES('20231114-221420-874914',1,'{"round": 1, "outcome": "failed", "cohort": 2, "accepted": 0, "declined": 2, "reported": 0, "user_accuracy": null, "user_accuracy_min": null, "user_accuracy_after": null, "phase_seconds": {"select": 0.0, "recruit": 0.0, "download": 0.0, "train": 0.0, "upload": 0.0, "aggregate": 0.0}, "bytes_down": 0, "bytes_up": 0, "num_examples": 0, "decline_reasons": {}, "failures": {}, "refused": {}, "late": 0, "metric": "accuracy", "metric_goal": "max", "user_accuracy_p10": null, "user_accuracies": {}, "bounded": {}, "downloads": 0, "deadline_s": 0.0, "report_p90_s": null, "absent": {}, "needed": 0, "measured": 0, "offenders": {}, "bounded_devices": {}, "independent": {}, "pulls": {}, "pull_quantiles": {}, "privacy": {}, "train_loss": null, "user_accuracy_histogram": []}');
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    task TEXT NOT NULL,
    strategy TEXT NOT NULL,
    private TEXT NOT NULL,
    settings TEXT NOT NULL,
    schema TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'interrupted', 'failed')),
    stopped_because TEXT,
    user_accuracy REAL,
    model TEXT
, changes INTEGER NOT NULL DEFAULT 0);
INSERT INTO "runs" VALUES(1,'20231114-221320-c4242e',1700000000.0,'digits','fedavg','affine','{"rounds": 2, "fleet": "lab", "encoding": "delta-int8"}','5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c',1,'finished','max_rounds',0.7,'/x/model.npz',4);
INSERT INTO "runs" VALUES(2,'20231114-221420-874914',1700000060.0,'digits','fedavg','affine','{"rounds": 3, "fleet": "lab", "encoding": "delta-int8"}','5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c',1,'running',NULL,NULL,NULL,2);
CREATE TABLE updates (
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    digest TEXT NOT NULL,
    raw_bytes INTEGER NOT NULL,
    num_examples INTEGER NOT NULL, encoding TEXT NOT NULL DEFAULT 'fp32+zstd',
    PRIMARY KEY (run, round, device)
);
INSERT INTO "updates" VALUES('20231114-221420-874914',2,'pi-1','cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd',99,40,'delta-int8');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',2);
PRAGMA user_version = 11;
COMMIT;
