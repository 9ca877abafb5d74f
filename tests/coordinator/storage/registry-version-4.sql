BEGIN TRANSACTION;
CREATE TABLE acceptances (
    run TEXT NOT NULL REFERENCES runs (id),
    device TEXT NOT NULL,
    PRIMARY KEY (run, device)
);
INSERT INTO "acceptances" VALUES('20231114-221420-66dbb0','pi-1');
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
CREATE TABLE offences (
    fleet TEXT NOT NULL,
    id TEXT NOT NULL,
    count INTEGER NOT NULL,
    last TEXT NOT NULL,
    PRIMARY KEY (fleet, id)
);
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
, encoding TEXT NOT NULL DEFAULT '', negotiated TEXT NOT NULL DEFAULT '{}');
INSERT INTO "open_rounds" VALUES('20231114-221420-66dbb0',2,2,'["pi-1", "pi-2"]','abababababababababababababababababababababababababababababababab',0.0,'boot',10.0,1700000070.0,0,0,'delta-int8','{}');
CREATE TABLE rounds (
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (run, round)
);
INSERT INTO "rounds" VALUES('20231114-221320-d5c6f5',1,'{"round": 1, "outcome": "aggregated", "cohort": 2, "accepted": 2, "declined": 0, "reported": 2, "user_accuracy": 0.6, "user_accuracy_min": 0.4, "user_accuracy_after": 0.7, "phase_seconds": {"select": 0.0, "recruit": 0.0, "download": 0.0, "train": 1.5, "upload": 0.0, "aggregate": 0.0}, "bytes_down": 100, "bytes_up": 200, "num_examples": 288, "decline_reasons": {}, "failures": {}, "refused": {}, "late": 0, "metric": "accuracy", "metric_goal": "max", "user_accuracy_p10": null, "user_accuracies": {}, "bounded": {}, "downloads": 0}');
INSERT INTO "rounds" VALUES('20231114-221320-d5c6f5',2,'{"round": 2, "outcome": "aggregated", "cohort": 2, "accepted": 2, "declined": 0, "reported": 2, "user_accuracy": 0.7, "user_accuracy_min": 0.4, "user_accuracy_after": 0.7, "phase_seconds": {"select": 0.0, "recruit": 0.0, "download": 0.0, "train": 1.5, "upload": 0.0, "aggregate": 0.0}, "bytes_down": 100, "bytes_up": 200, "num_examples": 288, "decline_reasons": {}, "failures": {}, "refused": {}, "late": 0, "metric": "accuracy", "metric_goal": "max", "user_accuracy_p10": null, "user_accuracies": {}, "bounded": {}, "downloads": 0}');
INSERT INTO "rounds" VALUES('20231114-221420-66dbb0',1,'{"round": 1, "outcome": "failed", "cohort": 2, "accepted": 0, "declined": 2, "reported": 0, "user_accuracy": null, "user_accuracy_min": null, "user_accuracy_after": null, "phase_seconds": {"select": 0.0, "recruit": 0.0, "download": 0.0, "train": 0.0, "upload": 0.0, "aggregate": 0.0}, "bytes_down": 0, "bytes_up": 0, "num_examples": 0, "decline_reasons": {"unwilling": 2}, "failures": {}, "refused": {}, "late": 0, "failure": "too_few_accepted", "metric": "accuracy", "metric_goal": "max", "user_accuracy_p10": null, "user_accuracies": {}, "bounded": {}, "downloads": 0}');
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
);
INSERT INTO "runs" VALUES(1,'20231114-221320-d5c6f5',1700000000.0,'digits','fedavg','affine','{"rounds": 2, "fleet": "lab", "encoding": "delta-int8"}','5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c',1,'finished','max_rounds',0.7,'/x/model.npz');
INSERT INTO "runs" VALUES(2,'20231114-221420-66dbb0',1700000060.0,'digits','fedavg','affine','{"rounds": 3, "fleet": "lab", "encoding": "delta-int8"}','5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c',1,'running',NULL,NULL,NULL);
CREATE TABLE sums (name TEXT PRIMARY KEY, total INTEGER NOT NULL, changes INTEGER NOT NULL);
INSERT INTO "sums" VALUES('acceptances',415683183,2);
INSERT INTO "sums" VALUES('devices',5295676774,4);
INSERT INTO "sums" VALUES('holds',2650044079,2);
INSERT INTO "sums" VALUES('offences',0,1);
INSERT INTO "sums" VALUES('open_rounds',362690421,2);
INSERT INTO "sums" VALUES('rounds',7376811481,4);
INSERT INTO "sums" VALUES('runs',2126304744,4);
INSERT INTO "sums" VALUES('updates',790346650,2);
CREATE TABLE updates (
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    digest TEXT NOT NULL,
    raw_bytes INTEGER NOT NULL,
    num_examples INTEGER NOT NULL, encoding TEXT NOT NULL DEFAULT 'fp32+zstd',
    PRIMARY KEY (run, round, device)
);
INSERT INTO "updates" VALUES('20231114-221420-66dbb0',2,'pi-1','cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd',99,40,'delta-int8');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',2);
PRAGMA user_version = 4;
COMMIT;
