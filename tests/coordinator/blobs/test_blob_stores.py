"""Both blob stores: common behaviour, unusable places, and failed requests."""

from __future__ import annotations

import socket
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpatch.coordinator.blobs import object_blobs
from fedpatch.coordinator.blobs.blob_store import BlobStore, FileBlobs, open_blobs, run_blobs, url_problem
from fedpatch.coordinator.blobs.epoch_folder import EPOCH
from fedpatch.coordinator.blobs.object_blobs import ObjectBlobs
from fedpatch.coordinator.runtime.read_ahead import ReadAhead
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.blob_takeover import BlobPlaces, keys_of
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, save_checkpoint
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.coordinator.storage.update_files import store_update
from fedpatch.shared.app import store_waits
from fedpatch.shared.app.store_waits import ENDING_S, StoreWaits
from fedpatch.shared.errors import StateError, StoreUnavailable, UsageError
from tests.coordinator.effect_runners import Bench
from tests.support.disks import small_disk
from tests.support.s3_server import SECRET, S3Server

KEYS = ("checkpoint-000001.fp", "updates/000001/a.fp", "updates/000001/b.fp", "updates/000002/a.fp")
changes = st.lists(
    st.tuples(st.sampled_from((*KEYS, "updates/000001/")), st.none() | st.binary(max_size=20)), max_size=8
)


@pytest.mark.medium
@given(changes=changes)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_store_holds_what_was_put_and_not_deleted(blobs, changes):
    blobs.delete(*KEYS)
    expected: dict[str, bytes] = {}
    for key, content in changes:
        if content is None or key.endswith("/"):
            blobs.delete(key)
            gone = [one for one in expected if one == key or (key.endswith("/") and one.startswith(key))]
            for one in gone:
                del expected[one]
        else:
            blobs.put(key, content[:5], content[5:])
            expected[key] = content
    assert {key: blobs.get(key) for key in KEYS} == {key: expected.get(key) for key in KEYS}
    in_round = [key.rpartition("/")[2] for key in KEYS[1:3] if key in expected]
    assert blobs.list("updates/000001") == in_round
    assert ("checkpoint-000001.fp" in blobs.list()) == (KEYS[0] in expected)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://fleet", None),
        ("s3://fleet/a/b", None),
        ("file:///srv/blobs", None),
        ("s3://", "names no bucket"),
        ("s3://A_b/x", "is no bucket's name"),
        ("file://srv/blobs", "is not absolute"),
        ("https://fleet/a", "unknown scheme"),
        ("fleet", "unknown scheme"),
        ("s3://[", "is no URL"),
        ("s3://key:pass@fleet/a", "AWS_"),
        ("s3://fleet/a?secret=pass", "AWS_"),
    ],
)
def test_url_problem_names_fault_and_remedy_and_shows_no_secret(url, problem):
    found = url_problem(url)
    assert found is None if problem is None else problem in str(found) and "write s3://BUCKET/PREFIX" in str(found)
    assert "pass" not in str(found)


def test_file_url_holds_the_run_in_a_directory_of_its_name(tmp_path):
    open_blobs(f"file://{tmp_path}/elsewhere", Path("/state/runs/r-1")).put("model.npz", b"x")
    assert (tmp_path / "elsewhere" / "r-1" / "model.npz").read_bytes() == b"x"


def test_directory_that_a_setting_names_is_tried_before_a_run(tmp_path: Path):
    """Otherwise the first checkpoint would fail, when the fleet is there and its devices were asked."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        store = open_blobs(f"file://{disk.path}/blobs", Path("r1"))
        store.check()
        assert list(disk.path.iterdir()) == [], "the check has left something behind"
        disk.make_readonly()
        with pytest.raises(StateError, match=rf"^{disk.path}: Read-only file system; this disk is read-only"):
            store.check()
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="a file is where a directory is expected"):
        open_blobs(f"file://{tmp_path}/file/blobs", Path("r1")).check()


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, object_blobs.__name__)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"pip install 'fedpatch\[s3\]'"):
        open_blobs("s3://fleet/a", Path("r-1"))


@pytest.mark.parametrize(
    ("changes", "bucket", "message"),
    [
        ({}, "other", "s3://other/p: NoSuchBucket; make the bucket"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "fleet", "no credentials; set AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": "reader"}, "fleet", "AccessDenied; allow s3:GetObject, s3:PutObject"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "fleet", "InvalidAccessKeyId; correct AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": "hidden-words"}, "fleet", "SignatureDoesNotMatch; correct AWS_ACCESS_KEY_ID"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "fleet", "127.0.0.1:1 does not answer; start the object store"),
    ],
    ids=["no bucket", "no credentials", "only reads", "unknown key", "wrong secret", "nobody listens"],
)
def test_unusable_store_is_named_with_remedy_without_secrets(s3, monkeypatch, caplog, changes, bucket, message):
    monkeypatch.setattr(object_blobs, "_FIRST_RETRY_S", 0.3)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    for name, value in changes.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(StoreUnavailable) as caught:
        ObjectBlobs(bucket, "p").check()
    assert message in str(caught.value)
    assert caught.value.exit_code == 3
    for secret in (SECRET, "hidden-words", "nobody"):
        assert secret not in str(caught.value) + caplog.text


class Busy(BaseHTTPRequestHandler):
    """Answers the first `refused` requests with 503, and forwards all others to the server on `port`."""

    refused = 3
    port = 0

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if type(self).refused:
            type(self).refused -= 1
            self.send_error(503)
            return
        link = HTTPConnection("127.0.0.1", self.port)
        link.request("PUT", self.path, body, dict(self.headers))
        answer = link.getresponse()
        self.send_response(answer.status)
        self.send_header("ETag", str(answer.getheader("ETag")))
        self.send_header("Content-Length", "0")
        self.end_headers()
        link.close()

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def test_request_is_repeated_until_the_store_answers(s3, s3_server: S3Server, monkeypatch):
    Busy.refused, Busy.port = 3, s3_server.port
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        open_blobs(s3, Path("r-1")).put("a", b"x")
        server.shutdown()
        thread.join()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_server.port}")
    assert (Busy.refused, open_blobs(s3, Path("r-1")).get("a")) == (0, b"x")


def unreachable(s3: str, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    bucket, _, prefix = s3.removeprefix("s3://").partition("/")
    return ObjectBlobs(bucket, f"{prefix}/r-1", retry_s=0.2)


def test_resume_without_the_store_raises_and_forgets_nothing(
    s3, tmp_path: Path, prepared: Prepared, registry: Registry, monkeypatch
):
    bench = Bench(tmp_path, prepared, registry, blobs=open_blobs(s3, Path("r-1"))).begin()
    bench.upload("a", 1.0)
    run, reachable = bench.engine.spec.run, bench.blobs
    bench.blobs = unreachable(s3, monkeypatch)
    with pytest.raises(StoreUnavailable):
        bench.again()
    assert [update.device for update in registry.rounds.updates(run, 1)] == ["a"]
    bench.blobs = reachable
    assert any("round 1 goes on with 1 of 2 updates" in line for line in bench.again().lines)


def test_update_that_the_store_refuses_is_not_committed(
    s3, tmp_path: Path, prepared: Prepared, registry: Registry, monkeypatch
):
    bench = Bench(tmp_path, prepared, registry, blobs=open_blobs(s3, Path("r-1"))).begin()
    bench.updates._blobs = unreachable(s3, monkeypatch)
    with pytest.raises(StoreUnavailable):
        bench.upload("a", 1.0)
    assert registry.rounds.updates(bench.engine.spec.run, 1) == []
    assert not any(type(envelope.body).__name__ == "Committed" for _, envelope in bench.sent)


def test_run_resumes_on_another_machine_from_the_store(s3, tmp_path: Path, prepared: Prepared, registry: Registry):
    bench = Bench(tmp_path, prepared, registry, blobs=open_blobs(s3, Path("r-1"))).begin()
    bench.upload("a", 1.0)
    (tmp_path / "elsewhere").mkdir()
    bench.directory = tmp_path / "elsewhere"
    later = bench.again().begin()
    later.upload("b", 3.0)
    assert {float(array.max()) for array in load_checkpoint(bench.blobs)[0].tensors.values()} == {2.0}


class Counted(FileBlobs):
    """Counts the concurrent requests."""

    now = most = 0
    lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self.lock:
            self.now -= 1
        return super().get(key)


def test_read_ahead_returns_each_blob_and_keeps_its_bound(tmp_path):
    blobs = Counted(tmp_path)
    for number in range(12):
        store_update(blobs, 1, f"pi-{number:02d}", b"%d" % number)
    keys = [f"updates/000001/{name}" for name in blobs.list("updates/000001")]
    expected = [(tmp_path / key).read_bytes() for key in keys]
    with ThreadPoolExecutor(8) as pool:
        ahead = ReadAhead(blobs, keys, pool, 3)
        for _ in range(2):  # the robust rules read updates several times
            assert [ahead.get(key) for key in keys] == expected
        assert [ahead.get(key) for key in reversed(keys)] == expected[::-1]
        assert len(ahead._requests) <= 3
        assert ahead.get("updates/000001/pi-99.fp") is None
    assert 1 < blobs.most <= 4


def test_failed_request_ahead_is_raised_where_the_blob_is_read(s3, monkeypatch):
    blobs = unreachable(s3, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        ahead = ReadAhead(blobs, ["a", "b", "c"], pool, 2)
        for key in ("a", "b", "c"):
            with pytest.raises(StoreUnavailable):
                ahead.get(key)


def test_checkpoint_that_the_store_refuses_leaves_the_one_before(s3, prepared: Prepared, monkeypatch):
    blobs = open_blobs(s3, Path("r-1"))
    save_checkpoint(blobs, prepared.initial, prepared.public, {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        save_checkpoint(open_blobs(s3, Path("r-1")), prepared.initial, prepared.public, {"later": 1})
    assert load_checkpoint(blobs)[2] == {}


@pytest.mark.medium
def test_request_that_the_store_never_answers_is_logged_and_abandoned_soon_after_the_process_shall_end(
    s3, monkeypatch, caplog
):
    monkeypatch.setattr(store_waits, "SILENT_AFTER_S", 0.1)
    ending = StoreWaits()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        blobs = open_blobs(s3, Path("r-1"), ending=ending)
        threading.Timer(0.5, ending.set).start()
        since = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            blobs.put("a", b"x")
        assert time.monotonic() - since < 0.5 + ENDING_S + 1.0
    assert "s3://fleet at 127.0.0.1" in caplog.messages[0]


def test_request_is_as_old_as_the_clock_of_its_waits_says(s3, monkeypatch):
    monkeypatch.setattr(object_blobs, "_LOOK_S", 1e-4)
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    blobs = open_blobs(s3, Path("r-1"), ending=StoreWaits(lambda: 0.0))
    blobs.put("a", b"x")
    assert blobs.get("a") == b"x"


def test_request_that_ends_just_after_a_wait_has_its_result(s3, monkeypatch):
    class Late(Future[Any]):
        """Its result comes between the end of a wait and the next look."""

        def result(self, timeout: float | None = None) -> Any:
            found = super().result()
            if timeout is not None:
                raise TimeoutError
            return found

    monkeypatch.setattr(object_blobs, "Future", Late)
    blobs = open_blobs(s3, Path("r-1"))
    blobs.put("a", b"x")
    assert blobs.get("a") == b"x"


@pytest.mark.parametrize("before", [None, 6])
def test_next_leader_has_all_blobs_in_a_folder_of_its_own_where_the_one_before_does_not_write(
    store: str, tmp_path: Path, before: int | None
):
    """`before` is the epoch of the previous leader; None: a coordinator without standbys."""
    run = tmp_path / "r-1"
    former = open_blobs(store, run, before)
    for key in ("checkpoint-000001.fp", "updates/000002/pi-1.fp", "privacy-book.fp"):
        former.put(key, key.encode())
    places = BlobPlaces(store, run, 7)
    own = places.move_in(before or 6)
    former.put("updates/000002/pi-1.fp", b"late")
    former.put("checkpoint-000002.fp", b"late")
    assert own.list() == ["checkpoint-000001.fp", "privacy-book.fp", "updates/"]
    assert own.get("updates/000002/pi-1.fp") == b"updates/000002/pi-1.fp"
    assert run_blobs({"blobs": store}, run, 7).where() == own.where()
    places.drop(places.earlier(before or 6))
    left = {
        key.partition("/")[0]
        for name in open_blobs(store, run).list()
        for key in keys_of(open_blobs(store, run), name.rstrip("/"))
    }
    assert left == ({"epoch-000007"} if before is None else {"epoch-000006", "epoch-000007"})


def test_former_leader_that_wakes_up_deletes_no_blob_of_a_later_leader(store: str, tmp_path: Path):
    """It was paused after it had written its epoch, before it deleted the blobs of earlier leaders."""
    run = tmp_path / "r-1"
    open_blobs(store, run, 5).put("checkpoint-000001.fp", b"oldest")
    open_blobs(store, run, 6).put("checkpoint-000002.fp", b"old")
    former, leader = BlobPlaces(store, run, 7), BlobPlaces(store, run, 8)
    former.move_in(6)
    listed = former.earlier(6)
    own = leader.move_in(7)
    own.put("checkpoint-000003.fp", b"new")
    former.drop(listed)
    assert own.list() == ["checkpoint-000002.fp", "checkpoint-000003.fp"]
    assert open_blobs(store, run, 5).list() == []


def test_run_that_is_resumed_without_standbys_moves_back(store: str, tmp_path: Path):
    run = tmp_path / "r-1"
    open_blobs(store, run).put("checkpoint-000001.fp", b"old")
    open_blobs(store, run, 7).put("checkpoint-000002.fp", b"new")
    own = BlobPlaces(store, run).move_in(7)
    assert [name for name in own.list() if not name.startswith(EPOCH)] == ["checkpoint-000002.fp"]


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a store that several machines can reach."""
    return f"file://{tmp_path}/shared" if request.param == "file" else str(request.getfixturevalue("s3"))
