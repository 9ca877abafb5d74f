"""A device that cannot store what a round needs declines it, and its doctor and status name the damage and the remedy."""

from __future__ import annotations

import errno
import gc
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.asked_after_decline import lasts
from fedpatch.device_agent.cli import doctor
from fedpatch.device_agent.cli.doctor import _check_stored
from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.private_floor import PrivateFloor, tasks_with_records
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.model_cache import Held, ModelCache
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.patch_store import (
    CONTROLS,
    INDEPENDENT,
    PERSONAL,
    PatchKey,
    PatchRecord,
    PatchState,
    PatchStore,
    list_patches,
)
from fedpatch.device_agent.state.privacy_account import DevicePrivacyAccount
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.device_agent.state.storage_check import RETRY_S, Storage, stored_problems
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.shared.app.files import previous_of
from fedpatch.shared.errors import StateError
from fedpatch.shared.privacy.skellam import Release
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.features import COORDINATOR_FEATURES
from fedpatch.shared.wire.messages import Accept, Decline, WorkRequest
from fedpatch.shared.wire.plan_terms import PersonalCopy
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason
from tests.device_agent.exported_models import describe
from tests.device_agent.jobs import KEY, REQUEST, replies, requested
from tests.support.checkups import quiet_checkup
from tests.support.disks import SmallDisk, small_disk
from tests.support.examples import examples
from tests.support.failing_reads import FailingReads, reads
from tests.support.masked_group import PlayedGroup
from tests.support.other_users import acting_as_nobody, open_directory
from tests.support.specs import MODEL_SCHEMA, RUN, TASK, TASKS, envelope_of, update

__all__ = ["reads"]
PATCH = PatchKey(TASK, REQUEST.schema, REQUEST.private)
ALONE = PatchKey(TASK, REQUEST.schema, "independent")
NOW = replace(REQUEST, features=COORDINATOR_FEATURES)
PUBLIC = Schema((TensorSpec("w", (8,), "float32", "weight"),))


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    store = PatchStore(tmp_path / "patches")
    for number in (1, 2):
        states = [PatchState({"bn.weight": np.full(4, value, np.float32)}, value) for value in (number - 1, number)]
        store.save(PatchRecord(PATCH, RUN, number, *states))
    return tmp_path


def paths(state_dir: Path) -> tuple[Path, Path]:
    path = state_dir / "patches" / PATCH.file_name
    return path, previous_of(path)


def spoil(*files: Path) -> None:
    """Flip one bit in the middle of each file."""
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def answer(state_dir: Path, request: WorkRequest = NOW) -> Decline | Accept:
    found = Storage(state_dir).problem(TASK, request, DownloadPlan(request.model))
    verdict = found.verdict if found else AdmissionDecision(True)
    job = Job(max_blob_bytes=10_000)
    (body,) = replies(job.handle(requested(envelope_of(request), TASKS, verdict), 0.0))
    assert isinstance(body, Decline | Accept)
    return body


@pytest.mark.parametrize(
    ("request_", "reason"),
    [(NOW, DeclineReason.STORAGE), (REQUEST, DeclineReason.UNWILLING)],
    ids=["coordinator", "older coordinator"],
)
def test_request_with_both_patches_damaged_is_declined_with_a_reason_it_knows(state_dir: Path, request_, reason):
    assert isinstance(answer(state_dir, request_), Accept)
    spoil(*paths(state_dir))
    declined = answer(state_dir, request_)
    assert isinstance(declined, Decline)
    assert (declined.reason, declined.condition, declined.retry_after_s) == (reason, None, RETRY_S)
    assert str(state_dir) not in declined.detail
    assert not lasts(declined)
    with pytest.raises(StateError):
        PatchStore(state_dir / "patches").load(PATCH, RUN, 3)


@pytest.mark.parametrize("replaced", [False, True])
def test_request_is_declined_if_the_state_directory_was_deleted_or_replaced(state_dir: Path, replaced: bool):
    storage = Storage(state_dir)
    state_dir.rename(state_dir.with_name("away"))
    if replaced:
        state_dir.mkdir()
    found = storage.problem(TASK, NOW, DownloadPlan(NOW.model))
    assert found is not None
    assert found.verdict.reason is DeclineReason.STORAGE
    assert found.text.startswith(f"{state_dir}: is not the directory that this agent began with; ")
    if replaced:
        state_dir.rmdir()
    state_dir.with_name("away").rename(state_dir)
    assert storage.problem(TASK, NOW, DownloadPlan(NOW.model)) is None


def test_request_is_declined_while_the_card_takes_no_file(state_dir: Path, monkeypatch):
    storage = Storage(state_dir)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(state_dir / ".probe"))

    with monkeypatch.context() as patch:
        patch.setattr("fedpatch.device_agent.state.storage_check.write_atomic", refuse)
        found = storage.problem(TASK, NOW, DownloadPlan(NOW.model))
        assert found is not None
        assert found.verdict.reason is DeclineReason.STORAGE
        assert "cannot be written: Input/output error; the disk cannot read or write it" in found.text
    assert storage.problem(TASK, NOW, DownloadPlan(NOW.model)) is None
    assert not (state_dir / ".probe").exists()


def test_request_whose_patch_cannot_be_read_now_is_declined_until_it_can(state_dir: Path, reads: FailingReads):
    storage = Storage(state_dir)
    reads.fail(paths(state_dir)[0])
    found = storage.problem(TASK, NOW, DownloadPlan(NOW.model))
    assert found is not None
    assert found.verdict.reason is DeclineReason.STORAGE
    reads.recover()
    assert storage.problem(TASK, NOW, DownloadPlan(NOW.model)) is None


def test_request_whose_kind_of_plan_has_a_damaged_patch_is_declined(tmp_path: Path):
    request = replace(NOW, plan=replace(NOW.plan, prox=0.1))
    key = PatchKey.of_plan(TASK, request.schema, request.private, "prox")
    PatchStore(tmp_path / "patches").save(PatchRecord(key, RUN, 1, PatchState(), PatchState({}, 1)))
    spoil(tmp_path / "patches" / key.file_name)
    assert isinstance(answer(tmp_path), Accept)
    declined = answer(tmp_path, request)
    assert isinstance(declined, Decline)
    assert declined.reason is DeclineReason.STORAGE


def test_request_that_needs_a_damaged_personal_copy_is_declined(tmp_path: Path):
    request = replace(NOW, plan=replace(NOW.plan, personal=PersonalCopy("ditto", 1.0)))
    key = PatchKey.of_plan(TASK, request.schema, request.private, "ditto")
    PatchStore(tmp_path / "patches" / PERSONAL).save(PatchRecord(key, RUN, 1, PatchState(), PatchState({}, 1)))
    assert isinstance(answer(tmp_path, request), Accept)
    spoil(tmp_path / "patches" / PERSONAL / key.file_name)
    assert isinstance(answer(tmp_path), Accept)
    declined = answer(tmp_path, request)
    assert isinstance(declined, Decline)
    assert declined.reason is DeclineReason.STORAGE


def test_request_with_one_patch_damaged_or_of_another_task_is_accepted(state_dir: Path):
    newest, before = paths(state_dir)
    for one in (newest, before):
        data = one.read_bytes()
        spoil(one)
        assert isinstance(answer(state_dir), Accept)
        one.write_bytes(data)
    spoil(newest, before)
    assert isinstance(answer(state_dir, replace(NOW, private="all")), Accept)


@pytest.mark.parametrize("words", ["names:bn.weight", "names:bn.*", "affine"])
def test_request_in_any_words_for_the_private_tensors_of_a_damaged_patch_is_declined(state_dir: Path, words: str):
    """Training would read this patch, whose key has the names that the words keep."""
    spoil(*paths(state_dir))
    storage = Storage(state_dir)
    storage.take(MODEL_SCHEMA)
    request = replace(NOW, private=words)
    assert storage.problem(TASK, request, DownloadPlan(NOW.model)) is not None
    assert storage.problem(TASK, replace(request, private="names:fc.*"), DownloadPlan(NOW.model)) is None
    assert storage.problem(TASK, replace(request, private="names:"), DownloadPlan(NOW.model)) is None


@pytest.mark.parametrize("schema", [None, MODEL_SCHEMA], ids=["unknown model", "known model"])
def test_request_is_declined_where_the_directory_of_patches_cannot_be_entered(schema: Schema | None):
    """As after root has restored it from a copy: the agent goes on, and its status has the remedy."""
    with open_directory() as place:
        PatchStore(place / "patches")
        with acting_as_nobody():
            storage = Storage(place)
            if schema is not None:
                storage.take(schema)
            found = storage.problem(TASK, NOW, DownloadPlan(NOW.model))
    assert found is not None and "chown" in found.text


def test_check_of_a_device_without_patches_makes_no_directory(tmp_path: Path):
    """A relay checks the same, and never has patches."""
    storage = Storage(tmp_path)
    storage.take(MODEL_SCHEMA)
    assert storage.problem(TASK, NOW, DownloadPlan(NOW.model)) is None
    assert list(tmp_path.iterdir()) == []


def test_patches_that_were_moved_away_let_the_device_take_part_again(state_dir: Path):
    storage = Storage(state_dir)
    spoil(*paths(state_dir))
    found = storage.problem(TASK, NOW, DownloadPlan(NOW.model))
    assert found is not None
    assert f"move {paths(state_dir)[0]} and {paths(state_dir)[1].name} away" in found.text
    assert "is lost with them" in found.text
    for path in paths(state_dir):
        path.rename(path.with_name(f"{path.name}.aside"))
    assert storage.problem(TASK, NOW, DownloadPlan(NOW.model)) is None


@pytest.mark.medium
def test_keys_from_the_network_are_not_collected(state_dir: Path):
    """A coordinator may request another policy each time; only the last key needs to be kept."""
    storage = Storage(state_dir)
    for number in range(50):
        request = replace(NOW, private=f"names:from-the-network-{number}")
        assert storage.problem(TASK, request, DownloadPlan(request.model)) is None
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one) is PatchKey and "from-the-network" in one.policy]
    assert len(kept) <= 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "1m") as made:
        yield made


@pytest.mark.parametrize(
    ("hinder", "help"),
    [(SmallDisk.fill, SmallDisk.empty), (SmallDisk.make_readonly, SmallDisk.make_writable)],
    ids=["full", "read-only"],
)
def test_request_on_a_disk_that_takes_nothing_is_declined_until_it_does(disk: SmallDisk, hinder, help):
    assert isinstance(answer(disk.path), Accept)
    hinder(disk)
    for request in (NOW, REQUEST):
        declined = answer(disk.path, request)
        assert isinstance(declined, Decline)
        assert (declined.reason, declined.condition) == (DeclineReason.UNWILLING, Condition.LOW_DISK)
    help(disk)
    assert isinstance(answer(disk.path), Accept)


def test_parts_of_the_model_on_a_small_disk_count_as_room(disk: SmallDisk):
    blob = replace(NOW.model, size_bytes=600_000)
    request = replace(NOW, model=blob, encoding="delta-int8")
    (disk.path / "downloads").mkdir()
    (disk.path / "downloads" / f"{blob.digest}.part").write_bytes(bytes(550_000))
    assert Storage(disk.path).problem(TASK, request, DownloadPlan(request.model)) is None
    (disk.path / "other").write_bytes(bytes(150_000))
    assert Storage(disk.path).problem(TASK, request, DownloadPlan(request.model)) is not None


def test_part_of_the_model_that_has_just_begun_counts_by_what_the_disk_holds_of_it(disk: SmallDisk):
    """From its first chunk on, the file has the size of the whole model, but is mostly empty."""
    blob = replace(NOW.model, size_bytes=600_000)
    request = replace(NOW, model=blob, encoding="delta-int8")
    (disk.path / "downloads").mkdir()
    with (disk.path / "downloads" / f"{blob.digest}.part").open("wb") as part:
        part.write(bytes(8192))
        part.truncate(blob.size_bytes)
    (disk.path / "other").write_bytes(bytes(400_000))
    found = Storage(disk.path).problem(TASK, request, DownloadPlan(request.model))
    assert found is not None
    assert found.verdict.condition is Condition.LOW_DISK


# ---- the doctor


def test_a_damaged_control_variate_is_named_and_declines_no_round(tmp_path):
    store = PatchStore(tmp_path / "patches" / CONTROLS)
    store.save(PatchRecord(PATCH, RUN, 1, PatchState(), PatchState({"fc.weight:control": np.ones(4, np.float32)})))
    (store.directory / PATCH.file_name).write_bytes(b"damaged")
    [(declines, problem, remedy)] = stored_problems(tmp_path)
    assert (declines, "patches/control/" in problem, "begins with a new one, of zero" in remedy) == (False, True, True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of an agent, with a file of each kind."""
    state = tmp_path_factory.mktemp("state")
    store = PatchStore(state / "patches")
    alone = PatchStore(store.directory / INDEPENDENT)
    for number in (1, 2):
        after = PatchState({"bn.weight": np.full(4, number, np.float32)}, number)
        store.save(PatchRecord(PATCH, RUN, number, PatchState(), after))
        alone.save(PatchRecord(ALONE, RUN, number, PatchState(), after))
    PrivateFloor(store.directory, TASK).note({"bn.weight"}, MODEL_SCHEMA)
    DevicePrivacyAccount(state).count("lab", RUN, TASK, "ab" * 32, Release(2.0, 0))
    masking = PlayedGroup.of(3).devices[0].rounds.state
    assert masking is not None
    MaskingFile(state).save(masking)
    OfferedBases(state).add("ec" * 32)
    RevocationFile(state).save(b"a list")
    ModelCache(state / "held").write(Held("ab" * 32, "cd" * 32, "fp32", 3), b"xyz")
    spool = UpdateSpool(state / "spool")
    spool.update_path.write_bytes(b"update")
    spool.save(Spooled(KEY, update(b"update"), REQUEST))
    spool.note_committed()
    spool.save(Spooled(KEY, update(b"update"), REQUEST))
    models = ModelStore(state / "models", keep=2)
    for number in (1, 2, 3):
        model = b"a model" * number
        models.stage(model, describe(number, model, run=RUN, task=TASK))
        if number < 3:
            models.publish(TASK, RUN, number)
    models.stage(b"the first", describe(1, b"the first", run=RUN, task="another"))
    return state


def findings(state_dir: Path) -> list[tuple[str, str, str]]:
    checkup = quiet_checkup()
    _check_stored(state_dir, checkup)
    assert {one.name for one in checkup.findings} <= {"stored"}
    return [(one.verdict, one.detail, one.remedy) for one in checkup.findings]


def test_stored_content_of_an_agent_that_is_whole_is_good(whole: Path, tmp_path: Path):
    assert [verdict for verdict, *_ in findings(whole)] == ["ok"]
    assert findings(tmp_path / "nowhere") == []


@pytest.mark.parametrize("gone", [False, True])
def test_file_that_an_agent_replaces_while_the_doctor_reads_is_no_finding(
    whole: Path, tmp_path: Path, monkeypatch, gone
):
    """The first look reads a mixture of two states, or misses a file; the second one reads the state after."""
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    data = (state_dir / "masking.bin").read_bytes()
    spoil(state_dir / "masking.bin")

    def problems(directory: Path, private: str) -> list[tuple[bool, str, str]]:
        found = list(stored_problems(directory, private))
        mixed = (state_dir / "masking.bin").read_bytes() != data
        (state_dir / "masking.bin").write_bytes(data)
        if mixed and gone:
            raise FileNotFoundError
        return found

    monkeypatch.setattr(doctor, "stored_problems", problems)
    assert [verdict for verdict, *_ in findings(state_dir)] == ["ok"]


@examples(200)
@given(which=st.integers(0, 40), at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_flipped_bit_in_any_file_of_an_agent_is_found(whole: Path, which: int, at: float, bit: int):
    files = sorted(one for one in whole.rglob("*") if one.is_file() and one.stat().st_size)
    path = files[which % len(files)]
    data = path.read_bytes()
    place = int(at * len(data))
    try:
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :])
        assert any(verdict in ("warn", "fail") for verdict, *_ in findings(whole)), (path, place)
    finally:
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "private", "verdict", "remedy"),
    [
        ("privacy-ledger", "", "fail", "move it away to count from zero"),
        (f"patches/{TASK}.private", "", "fail", "set `private`"),
        (f"patches/{TASK}.private", "affine", "warn", "delete it"),
        ("masking.bin", "", "warn", "nothing: the agent deletes it"),
        ("masked-bases", "", "fail", "move it away"),
        ("revocations.bin", "", "fail", "the coordinator's next list counts"),
    ],
)
def test_damaged_record_is_a_finding_that_fails_where_rounds_are_declined_for_it(
    whole: Path, tmp_path: Path, file: str, private: str, verdict: str, remedy: str
):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    spoil(state_dir / file)
    checkup = quiet_checkup()
    _check_stored(state_dir, checkup, private)
    [one] = checkup.findings
    assert (one.verdict, remedy in one.remedy, str(state_dir / file) in one.detail) == (verdict, True, True)


@pytest.mark.parametrize(
    ("file", "content", "remedy"),
    [
        ("usage.json", b'{"seen":"2026', "restore it from a backup"),
        ("leader-epoch", bytes(4), "it is written again"),
        ("history.jsonl", bytes(800), "they are left out"),
    ],
)
def test_damaged_file_that_declines_no_round_is_a_warning(
    whole: Path, tmp_path: Path, file: str, content: bytes, remedy: str
):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    (state_dir / file).write_bytes(content)
    [one] = findings(state_dir)
    assert (one[0], str(state_dir / file) in one[1], remedy in one[2]) == ("warn", True, True)


def test_damage_is_found_beside_a_history_that_cannot_be_read(whole: Path, tmp_path: Path):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    (state_dir / "history.jsonl").mkdir()
    spoil(paths(state_dir)[1])
    found = findings(state_dir)
    assert [verdict for verdict, *_ in found] == ["warn", "warn"]
    assert any(str(paths(state_dir)[1]) in detail for _, detail, _ in found)


def test_rounding_errors_that_an_earlier_version_kept_are_no_patch_and_no_problem(whole: Path, tmp_path: Path):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    patch = state_dir / "patches" / PATCH.file_name
    patch.with_suffix(".residual").write_bytes(b"fedpatch residual 1\n")
    assert [verdict for verdict, *_ in findings(state_dir)] == ["ok"]
    assert [one.problem for one in list_patches(state_dir / "patches")] == [""]


def test_files_that_macos_leaves_beside_copies_are_no_patches_and_no_records(whole: Path, tmp_path: Path):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    for path in [*state_dir.glob("patches/*.patch"), *state_dir.glob("patches/*.private")]:
        path.with_name(f"._{path.name}").write_bytes(bytes(4096))
    assert [verdict for verdict, *_ in findings(state_dir)] == ["ok"]
    assert [one.problem for one in list_patches(state_dir / "patches")] == [""]
    assert tasks_with_records(state_dir / "patches") == [TASK]


@pytest.mark.parametrize("content", [b"", bytes(200)], ids=["empty", "zeros"])
def test_model_whose_sums_were_lost_in_a_power_cut_is_judged_by_its_metadata(
    whole: Path, tmp_path: Path, content: bytes
):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    for path in state_dir.glob("models/*/*/SHA256SUMS"):
        path.write_bytes(content)
    assert [verdict for verdict, *_ in findings(state_dir)] == ["ok"]


@pytest.mark.parametrize("closed", ["", "patches", "patches/personal"])
def test_directory_of_another_user_is_a_finding_that_names_the_user(closed: str):
    with open_directory() as directory:
        (directory / "patches" / "personal").mkdir(parents=True)
        (directory / closed).chmod(0o700)
        with acting_as_nobody():
            [(verdict, detail, remedy)] = findings(directory)
        (directory / closed).chmod(0o755)
    assert verdict == "fail"
    assert f"{directory / closed}: Permission denied" in detail
    assert "sudo -u root" in remedy


def test_doctor_fails_for_a_patch_that_rounds_are_declined_for(whole: Path, tmp_path: Path):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    newest, before = paths(state_dir)
    spoil(before)
    (one,) = findings(state_dir)
    assert (one[0], str(before) in one[1]) == ("warn", True)
    spoil(newest)
    (one,) = findings(state_dir)
    assert one[0] == "fail"
    assert f"move {newest} and {before.name} away" in one[2]


def test_doctor_warns_of_a_damaged_model_that_was_trained_alone(whole: Path, tmp_path: Path):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    newest = state_dir / "patches" / INDEPENDENT / ALONE.file_name
    spoil(newest, previous_of(newest))
    (one,) = findings(state_dir)
    assert one[0] == "warn"
    assert f"delete {newest} and {previous_of(newest).name}" in one[2]
    assert "measured from its beginning again" in one[2]


def test_status_names_the_files_of_a_damaged_patch(agent, whole: Path, tmp_path: Path):
    state_dir = Path(shutil.copytree(whole, tmp_path / "state", symlinks=True))
    (state_dir / "agent.lock").touch()
    newest, before = paths(state_dir)
    spoil(newest)
    assert "the next round uses the one before it" in agent("status", "--state-dir", state_dir).out
    spoil(before)
    assert f"move {newest} and {before.name} away" in agent("status", "--state-dir", state_dir).out
