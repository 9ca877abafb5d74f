"""Frozen values over a real broker: not in messages or files of a round, with any private policy and kind of training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fedpatch.coordinator.operations.export import export_global_model
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.device_agent.models.store import MODELS_DIRECTORY
from fedpatch.device_agent.state.patch_store import PERSONAL, PatchKey, PatchStore
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.tensors.patches import policy_of_names
from tests.support.brokers import Mosquitto
from tests.support.frozen_tasks import BASE, FILE, REFERENCE, SEED, SEED_VARIABLE, TASK, URL, base_file, base_values
from tests.system.commands import run as command
from tests.system.fleet import Fleet
from tests.system.recording import Haystack, Recorder, distinct_windows
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium]

ROUNDS = 2
DEVICES = {"ann": ("TASK", "n=37,test=30,seed=1"), "bob": ("FROM_FILE", "n=24,test=30,seed=2")}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("norms", {}),
    ("head", {"prox": 0.1}),
    ("names:*ora_B*", {"phases": "private:1,public:1"}),
    ("none", {"personal": "ditto:0.1"}),
    ("stats", {"personal": "pfedme:2", "strategy": "fedavg"}),
    ("affine", {"encoding": "delta-int8", "strategy": "fedadam"}),
    ("stats", {"dp": "central", "noise_multiplier": 1.0, "dp_clip": 1.0, "strategy": "fedavg", "evaluate_every": 0}),
    ("all", {"encoding": "fp32+zstd"}),
]


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder and records the requested paths."""

    asked: list[str] = []  # noqa: RUF012  (one list for all requests)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mosquitto, Fleet]]:
    """Two agents: one makes the base itself, the other fetches it from a web server."""
    directory = tmp_path_factory.mktemp("frozen")
    (directory / "web").mkdir()
    (directory / "web" / FILE.name).write_bytes(base_file())
    with (
        pytest.MonkeyPatch.context() as patched,
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(directory / "web"))) as httpd,
        Mosquitto("max_queued_messages 0") as broker,
        Fleet(broker.url, directory, forked=False) as fleet,
    ):
        patched.setenv("no_proxy", "127.0.0.1")
        patched.setenv(URL, f"http://127.0.0.1:{httpd.server_port}/{FILE.name}")
        Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            for device, (task, data) in DEVICES.items():
                data_root = str(directory / f"data-{device}")
                # The training process has no network: this command downloads the file.
                checked = command("fedpatch", "check-task", REFERENCE + task, "--data", data, "--data-root", data_root)
                assert checked.code == 0, checked.err
                options = ["--private", "none", "--data-root", data_root]
                fleet.start(device, REFERENCE + task, data, options=options)
            fleet.wait_ready()
            yield broker, fleet
        finally:
            httpd.shutdown()


@pytest.mark.parametrize(
    ("private", "terms"), [*CASES[:2], *(pytest.param(*one, marks=pytest.mark.slow) for one in CASES[2:])]
)
def test_no_frozen_and_no_private_value_is_on_the_wire_or_in_a_file_of_a_round(scene, tmp_path, private, terms):
    broker, fleet = scene
    plain = {"strategy": "fedavg-adam", "encoding": "fp32", "rounds": ROUNDS, "quorum": 1.0, "evaluate_every": ROUNDS}
    settings = fleet.settings(tmp_path, f"{REFERENCE}TASK", private=private, **plain | terms)
    with Recorder(broker.port, tmp_path) as recorder:
        summary = start_run(settings, Silent())
    rounds = ROUNDS + bool(settings.evaluate_every)
    assert [record.reported for record in summary.rounds] == [len(DEVICES)] * rounds
    haystack, base = Haystack(recorder.messages), base_values()
    assert haystack.names_of(BASE) == haystack.values_of(base) == set()
    prepared = prepare(settings)
    named = policy_of_names(prepared.policy.keeps(prepared.schema), prepared.schema)
    key = PatchKey.of_plan(TASK.name, prepared.schema.digest, str(named), prepared.plan.kind)
    for agent in fleet.agents.values():
        patch = PatchStore(agent.patches).load(key, summary.run, ROUNDS).values
        assert set(patch) == prepared.private_names
        assert haystack.values_of(patch) == set()
        assert haystack.names_of(set(patch).difference(prepared.policy.globs)) == set()  # requests have its text
        if terms.get("personal"):
            copy = PatchStore(agent.patches / PERSONAL).load(key, summary.run, ROUNDS).values
            assert {name for name in copy if ":" not in name} == set(prepared.schema.names)
            assert haystack.values_of(copy) == set()
        _require_absent(agent.state_dir, besides=MODELS_DIRECTORY)
    _require_absent(run_directory(tmp_path, summary.run))
    state = load_checkpoint(run_directory(tmp_path, summary.run))[0]
    assert set(state.tensors) == set(prepared.travelling.names)
    assert not set(BASE) & {name.partition(":")[0] for name in (*state.tensors, *state.server)}


def _require_absent(folder: Path, besides: str = "") -> None:
    """Check that no file has two adjacent values of the base."""
    windows = distinct_windows(base_values()["base.weight"])
    for path in folder.rglob("*"):
        if path.is_file() and besides not in path.relative_to(folder).parts:
            content = path.read_bytes()
            assert windows.isdisjoint(content[at : at + 8] for at in range(len(content) - 7)), path


def test_the_file_is_fetched_once_and_models_for_applications_hold_its_values(scene, tmp_path):
    """A restart finds the file in the data folder."""
    _, fleet = scene
    fleet.agents["bob"].restart()
    fleet.wait_ready()
    assert Handler.asked == [f"/{FILE.name}"]
    summary = start_run(fleet.settings(tmp_path, f"{REFERENCE}TASK", rounds=1, quorum=1.0), Silent())
    exported = export_global_model(tmp_path, summary.run, None, None).path
    personal = [
        agent.state_dir / MODELS_DIRECTORY / TASK.name / "current" / exported.name for agent in fleet.agents.values()
    ]
    for path in (exported, *personal):
        content = path.read_bytes()
        assert all(window in content for window in distinct_windows(base_values()["base.bias"])), path


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_base_and_with_no_other(scene, tmp_path):
    _, fleet = scene
    terms = {"task": f"{REFERENCE}TASK", "devices": 2, "rounds": 12, "quorum": 1.0}
    with fleet.coordinator(tmp_path, **terms) as coordinator:
        coordinator.wait(lambda: list(tmp_path.rglob("checkpoint-000001.fp")), "has played a round")
        coordinator.kill()
    resume = ("fedpatch", "resume", "last", "--json", "--state-dir", tmp_path)
    refused = command(*resume, environment={SEED_VARIABLE: str(SEED + 1)})
    assert refused.code != 0 and "install the version of the task that it was begun with" in refused.err
    done = command(*resume)
    assert (done.code, len(done.document["rounds"])) == (0, 12), done.err


def test_a_device_with_other_frozen_values_declines_and_doctor_names_it(scene, tmp_path):
    broker, fleet = scene
    with Fleet(broker.url, tmp_path / "eve", forked=False) as others:
        others.start("eve", f"{REFERENCE}OTHER", "n=20,test=20,seed=3").wait_ready()
        where = ("--broker", broker.url, "--fleet", fleet.name, "--state-dir", tmp_path / "state")
        found = command("fedpatch", "doctor", "--task", f"{REFERENCE}TASK", *where, "--json").document["findings"]
        said = {one["name"]: one for one in found}
        assert "2 tensors (520 B, digest " in said["frozen"]["detail"]
        assert "eve built another model" in said["device_schema"]["detail"]
        assert "with the same frozen values" in said["device_schema"]["mend"]
        terms = {"devices": 3, "rounds": 1, "quorum": 0.5, "min_cohort": 2}
        summary = start_run(fleet.settings(tmp_path / "state", f"{REFERENCE}TASK", **terms), Silent())
        assert summary.rounds[0].decline_reasons == {"schema_mismatch": 1}
        assert summary.rounds[0].reported == 2


def test_an_agent_without_the_file_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.delenv(URL, raising=False)
    write_atomic(tmp_path / "settings.toml", f'task = "{REFERENCE}FROM_FILE"\ndata = "n=20,test=9,seed=1"\n'.encode())
    at = ("--config", tmp_path / "settings.toml", "--state-dir", tmp_path / "agent", "--data-root", tmp_path / "data")
    found = command("fedpatch-agent", "doctor", *at, "--json").document["findings"]
    (task,) = [one for one in found if one["name"] == "task"]
    assert task["verdict"] == "fail"
    assert f"bring it here by other means as {tmp_path / 'data' / 'frozen' / FILE.name}" in task["detail"]
    FILE.path(tmp_path / "data").parent.mkdir(parents=True)
    FILE.path(tmp_path / "data").write_bytes(base_file())
    found = command("fedpatch-agent", "doctor", *at, "--json").document["findings"]
    assert "2 tensors (520 B, digest " in next(one["detail"] for one in found if one["name"] == "frozen")
