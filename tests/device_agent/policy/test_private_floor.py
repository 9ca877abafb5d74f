"""The private floor: the owner's setting, the record of earlier rounds, and the rule that no request undercuts it."""

from __future__ import annotations

import errno
from pathlib import Path
from tempfile import TemporaryDirectory

import msgpack
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedpatch.device_agent.policy.private_floor import (
    FloorRecord,
    PrivateFloor,
    public_schema,
    tasks_with_records,
    undercut,
)
from fedpatch.device_agent.state.patch_store import (
    RECORD_LINE,
    PatchKey,
    PatchRecord,
    PatchState,
    PatchStore,
    patch_remedy,
)
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.app.files import seal
from fedpatch.shared.errors import StateError, UpdateRefused, UsageError
from fedpatch.shared.tensors.arrays import MOMENTS, Role, Schema, TensorSpec, base_name
from fedpatch.shared.tensors.patches import parse_policy
from tests.device_agent.device_rounds import ADAM, Scene
from tests.device_agent.toy_tasks import TOY, random_data
from tests.support.failing_reads import FailingReads

NAMES = (
    "conv.weight",
    "bn1.weight",
    "bn1.bias",
    "bn1.running_mean",
    "bn2.weight",
    "bn2.running_var",
    "fc.weight",
    "fc.bias",
)
ROLES: tuple[Role, ...] = ("weight", "affine", "affine", "stats", "affine", "stats", "weight", "weight")
MODEL = Schema(tuple(TensorSpec(name, (2,), "float32", role) for name, role in zip(NAMES, ROLES, strict=True)))
NEWER = Schema((*MODEL.specs, *(TensorSpec(f"new.{role}", (2,), "float32", role) for role in sorted(set(ROLES)))))
PLAIN = Schema((TensorSpec("fc.weight", (2,), "float32", "weight"), TensorSpec("fc.bias", (2,), "float32", "weight")))

GLOBS = st.sampled_from([*NAMES, "bn*", "*bn*", "bn1.*", "*.weight", "*.bias", "fc.*", "*.running_*", "conv.*"])
POLICIES = st.one_of(
    st.sampled_from(["none", "stats", "affine", "all"]),
    st.lists(GLOBS, min_size=1, max_size=4).map(lambda globs: "names:" + ",".join(globs)),
)


def floor_in(folder: Path, setting: str = "", task: str = "toy") -> PrivateFloor:
    """The floor of a device that keeps its files in a folder."""
    return PrivateFloor(folder, task, setting)


def private_of(policy: str) -> frozenset[str]:
    """Names of MODEL that a policy keeps; policies that a coordinator could not use are left out."""
    try:
        return parse_policy(policy).private_names(MODEL)
    except UsageError:
        assume(False)
        raise


class TestSetting:
    @pytest.mark.parametrize(
        ("request_", "lacking"),
        [
            ("affine", set()),
            ("all", set()),
            ("names:*bn*", set()),
            ("names:bn1.weight,bn1.bias,bn2.weight", set()),
            ("stats", {"bn1.weight", "bn1.bias", "bn2.weight"}),
            ("none", {"bn1.weight", "bn1.bias", "bn2.weight"}),
            ("names:fc.bias", {"bn1.weight", "bn1.bias", "bn2.weight"}),
            ("names:bn1.*", {"bn2.weight"}),
        ],
    )
    def test_a_new_device_keeps_affine_by_names_whatever_the_policys_text(self, tmp_path, request_, lacking):
        """The default floor is compared by tensors."""
        assert undercut(floor_in(tmp_path).of(MODEL), request_, MODEL) == lacking

    @pytest.mark.parametrize("request_", ["none", "names:fc.bias"])
    def test_a_model_without_batch_norm_is_possible(self, tmp_path, request_):
        """`affine` matches no tensor of it, so the default keeps nothing."""
        floor = floor_in(tmp_path).of(PLAIN)
        assert (floor.names, floor.words) == (frozenset(), "none")
        assert undercut(floor, request_, PLAIN) == set()

    def test_none_set_by_the_owner_is_obeyed_after_stricter_rounds(self, tmp_path):
        """The owner's setting holds, also below the record of earlier rounds; without it the record counts again."""
        floor_in(tmp_path).note(private_of("all"), MODEL)
        assert undercut(floor_in(tmp_path, "none").of(MODEL), "none", MODEL) == set()
        assert floor_in(tmp_path).of(MODEL).words == "all"

    @pytest.mark.parametrize(("setting", "words"), [("names:fc9.*", "fc9"), ("names:*", "nothing is left to federate")])
    def test_names_that_do_not_fit_the_model_are_an_error(self, tmp_path, setting, words):
        with pytest.raises(UsageError, match="private = names:") as error:
            floor_in(tmp_path, setting).check(MODEL)
        assert words in str(error.value)

    def test_setting_that_matches_no_tensor_of_the_model_is_no_error(self, tmp_path):
        floor_in(tmp_path, "affine").check(PLAIN)

    def test_source_of_a_floor_is_the_setting_or_the_default_or_a_stricter_round(self, tmp_path):
        assert floor_in(tmp_path, "all").of(MODEL).source == "setting"
        assert floor_in(tmp_path).of(MODEL).source == "default"
        floor_in(tmp_path).note(private_of("affine"), MODEL)
        assert floor_in(tmp_path).of(MODEL).source == "default"
        floor_in(tmp_path).note(private_of("all"), MODEL)
        assert floor_in(tmp_path).of(MODEL).source == "earlier rounds"

    def test_default_counts_beside_rounds_with_a_weaker_setting(self, tmp_path):
        """The owner had set `names:fc.bias` for a while."""
        floor_in(tmp_path, "names:fc.bias").note({"fc.bias"}, MODEL)
        assert floor_in(tmp_path).of(MODEL).names == private_of("affine") | {"fc.bias"}

    def test_words_of_a_floor_name_no_policy_that_keeps_more(self, tmp_path):
        floor_in(tmp_path).note({"bn1.running_mean"}, MODEL)
        assert floor_in(tmp_path).of(MODEL).words.startswith("names 'bn1.bias'")


class TestRecord:
    def test_a_restart_keeps_the_strictest_that_ever_was(self, tmp_path):
        floor_in(tmp_path).note(private_of("names:bn*,fc.bias"), MODEL)
        floor_in(tmp_path).note(private_of("affine"), MODEL)
        floor = floor_in(tmp_path).of(MODEL)
        assert floor.names == private_of("all") | {"fc.bias"}
        assert floor.source == "earlier rounds"
        assert undercut(floor, "affine", MODEL) == {"bn1.running_mean", "bn2.running_var", "fc.bias"}

    def test_record_belongs_to_one_task(self, tmp_path):
        floor_in(tmp_path).note(private_of("all"), MODEL)
        assert floor_in(tmp_path, task="toy-2").of(MODEL).words == "affine"

    def test_a_next_version_of_the_task_with_more_layers_is_covered(self, tmp_path):
        floor_in(tmp_path).note(private_of("names:bn*"), MODEL)
        newer = Schema((*MODEL.specs, TensorSpec("bn3.running_var", (2,), "float32", "stats")))
        assert "bn3.running_var" in floor_in(tmp_path).of(newer).names

    @pytest.mark.parametrize("damage", [b"", b"fedpatch private 1\n", b"\0" * 90], ids=["empty", "cut", "zeros"])
    def test_a_damaged_record_declines_everything_until_the_owner_decides(self, tmp_path, damage):
        """No weaker record replaces it either, also if the owner's setting permits a round."""
        floor = floor_in(tmp_path)
        floor.note(private_of("all"), MODEL)
        floor.path.write_bytes(damage)
        with pytest.raises(StateError, match="Set `private`"):
            floor.of(MODEL)
        with pytest.raises(StateError, match="Set `private`"):
            floor.note(private_of("affine"), MODEL)
        owned = floor_in(tmp_path, "affine")
        assert owned.of(MODEL).words == "affine"
        owned.note(private_of("affine"), MODEL)
        assert floor.path.read_bytes() == damage

    @pytest.mark.parametrize("name", ["toy.private", f"toy-{'0' * 16}.patch"], ids=["record", "patch"])
    def test_record_or_patch_that_the_system_withholds_is_not_to_be_deleted(self, tmp_path, name):
        """The file may be whole."""
        (tmp_path / name).mkdir()
        with pytest.raises(StateError, match=r"a directory is where a file is expected.*Set `private`") as error:
            floor_in(tmp_path).of(MODEL)
        assert "delete" not in str(error.value)
        assert "damaged" not in str(error.value)

    def test_error_of_a_damaged_record_names_both_remedies(self, tmp_path):
        floor = floor_in(tmp_path)
        floor.path.write_bytes(b"")
        with pytest.raises(StateError, match=r"Set `private`.*, or delete") as error:
            floor.of(MODEL)
        assert str(floor.path) in str(error.value)

    def test_error_of_a_record_of_another_user_names_the_remedy_for_that_alone(self, tmp_path, monkeypatch):
        floor = floor_in(tmp_path)
        floor.note(private_of("all"), MODEL)
        reads = FailingReads(monkeypatch)
        reads.error = errno.EACCES
        reads.fail(floor.path)
        with pytest.raises(StateError, match="what stayed private in earlier rounds is not known") as error:
            floor.of(MODEL)
        assert "Set `private`" not in str(error.value)

    def test_record_of_another_task_is_refused(self, tmp_path):
        floor_in(tmp_path).note(private_of("all"), MODEL)
        other = floor_in(tmp_path, task="toy-2")
        other.path.write_bytes(floor_in(tmp_path).path.read_bytes())
        with pytest.raises(StateError, match="is not the record of task 'toy-2'"):
            other.of(MODEL)

    @pytest.mark.parametrize(("roles", "names"), [([1], []), ([], [1]), (["affine"], ["bn1.bias", None])])
    def test_record_with_a_value_that_is_no_text_is_refused(self, tmp_path, roles, names):
        floor = floor_in(tmp_path)
        header = {"task": "toy", "roles": roles, "names": names}
        floor.path.write_bytes(seal(RECORD_LINE, msgpack.packb(header)))
        with pytest.raises(StateError, match="is not the record of task 'toy'"):
            floor.of(MODEL)

    def test_record_that_does_not_grow_is_not_written_again(self, tmp_path):
        """A device has thousands of rounds, and a card with a limited number of writes."""
        floor = floor_in(tmp_path)
        floor.note(private_of("all"), MODEL)
        before = floor.path.stat()
        floor.note(private_of("affine"), MODEL)
        after = floor.path.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_moment_that_stayed_private_keeps_its_tensor(self, tmp_path):
        floor_in(tmp_path).note({"fc.bias:exp_avg"}, MODEL.with_moments(MOMENTS))
        assert "fc.bias" in floor_in(tmp_path).of(MODEL).names

    @pytest.mark.parametrize(
        ("policy", "words"),
        [
            ("all", "all (5 tensors, 'bn1.bias', 'bn1.running_mean', 'bn1.weight' and 2 more)"),
            ("affine", "affine (3 tensors, 'bn1.bias', 'bn1.weight', 'bn2.weight')"),
            ("names:bn1.*", "3 tensors, 'bn1.bias', 'bn1.running_mean', 'bn1.weight'"),
        ],
    )
    def test_text_of_a_record_names_the_strictest_policy_and_three_tensors(self, policy, words):
        assert str(FloorRecord().plus(private_of(policy), MODEL)) == words

    def test_every_flipped_byte_is_found(self, tmp_path):
        floor = floor_in(tmp_path)
        floor.note(private_of("all"), MODEL)
        whole = floor.path.read_bytes()
        for index in range(len(whole)):
            floor.path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
            with pytest.raises(StateError):
                floor.of(MODEL)

    def test_record_is_derived_from_patches_of_an_older_agent(self, tmp_path):
        """An upgraded agent stays as strict as before, also if a patch's newest version is damaged."""
        store = PatchStore(tmp_path)
        for policy, name in (("all", "bn1.weight"), ("names:fc.*", "fc.bias")):
            key = PatchKey("toy", "5c" * 32, policy)
            for number in (1, 2):
                state = PatchState({name: np.full(2, number, np.float32)}, number)
                store.save(PatchRecord(key, "run", number, PatchState(), state))
            (tmp_path / key.file_name).write_bytes(b"damaged")
        floor = floor_in(tmp_path)
        assert floor.of(MODEL).names == private_of("all") | {"fc.bias"}
        floor.note(private_of("all"), MODEL)
        assert floor.path.exists()
        assert floor.kept().names >= private_of("all") | {"fc.bias"}

    def test_a_patch_of_before_that_cannot_be_read_declines_everything(self, tmp_path):
        """Its private tensors are unknown. The remedy names the patch, as the doctor does, and no record: none exists."""
        path = tmp_path / f"toy-{'0' * 16}.patch"
        path.write_bytes(b"damaged")
        with pytest.raises(StateError, match="what stayed private in earlier rounds is not known") as error:
            floor_in(tmp_path).of(MODEL)
        assert patch_remedy(path) in str(error.value)
        assert "Set `private`" in str(error.value)
        assert ".private" not in str(error.value)

    def test_a_disk_that_refuses_fails_the_round_before_anything_private_is_written(self, tmp_path):
        folder = tmp_path / "gone"
        with pytest.raises(StateError):
            floor_in(folder).note(private_of("affine"), MODEL)


@given(setting=st.one_of(st.just(""), POLICIES), policy=POLICIES, moments=st.sampled_from([(), MOMENTS]))
def test_no_policy_lets_a_name_travel_that_the_floor_keeps(setting, policy, moments):
    """For any two policies over a schema, no kept tensor or moment travels; an admitted request gets all it asked for."""
    private_of(policy)
    with TemporaryDirectory() as folder:
        floor = floor_in(Path(folder), setting).of(MODEL)
    public = public_schema(floor, policy, MODEL, moments)
    assert floor.names.isdisjoint(base_name(name) for name in public.names)
    if not undercut(floor, policy, MODEL):
        assert public == parse_policy(policy).public(MODEL.with_moments(moments))


@given(policies=st.lists(POLICIES, min_size=1, max_size=6))
def test_over_any_requests_what_once_stayed_never_travels(policies):
    """The device answers only requests that its floor admits, and restarts between any two of them."""
    with TemporaryDirectory() as folder:
        stayed: set[str] = set()
        for policy in policies:
            private = private_of(policy)
            if undercut(floor_in(Path(folder)).of(MODEL), policy, MODEL):
                continue
            assert stayed.isdisjoint(set(MODEL.names) - private)
            floor_in(Path(folder)).note(private, MODEL)
            stayed |= private


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_a_record_only_grows(first, second):
    kept = FloorRecord().plus(first, MODEL)
    assert kept.names_in(MODEL) >= first
    assert kept.plus(second, MODEL).names_in(MODEL) >= kept.names_in(MODEL) | second
    assert kept.plus(second, MODEL).names_in(NEWER) >= kept.names_in(NEWER)


def test_tasks_with_records_are_those_of_records_and_of_patches_and_previous_patches(tmp_path):
    for name in ("a.private", f"b-2-{'0' * 16}.patch", f"c-{'f' * 16}.patch.previous", "d.txt", "e-0.patch"):
        (tmp_path / name).touch()
    assert tasks_with_records(tmp_path) == ["a", "b-2", "c"]
    assert tasks_with_records(tmp_path / "absent") == []


class Device:
    """A device that trains the toy task with its owner's `private` setting."""

    def __init__(self, folder: Path, private: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.patches = PatchStore(folder / "patches")
        self.local_update = LocalUpdate(LocalTrainer(TOY, random_data("ann", 23)), self.patches, "ann", private=private)

    def run(self, scene: Scene, round: int = 1) -> set[str]:
        (scene.folder / "update").unlink(missing_ok=True)
        done = self.local_update.run(scene.command(round=round), lambda done, total: None, lambda: False)
        assert done is not None
        return set(scene.update(done[0])[1])


@pytest.mark.parametrize("private", ["none", "names:fc2.bias", "stats"])
def test_a_training_process_refuses_what_undercuts_its_earlier_rounds(tmp_path, private):
    """After rounds with `affine`, the training process also keeps gamma and beta, their moments and steps."""
    device = Device(tmp_path / "ann")
    for number in (1, 2):
        assert not [name for name in device.run(Scene(tmp_path, TOY, ADAM, "affine"), number) if "bn.weight" in name]
    before = sorted((path.name, path.read_bytes()) for path in device.patches.directory.iterdir())
    for again in (device, Device(tmp_path / "ann")):
        with pytest.raises(UpdateRefused, match=r"at least affine; 'bn\.bias'.* would leave it; nothing was trained"):
            again.run(Scene(tmp_path, TOY, ADAM, private), 3)
    assert not (tmp_path / "update").exists()
    assert sorted((path.name, path.read_bytes()) for path in device.patches.directory.iterdir()) == before


def test_statistics_that_once_stayed_do_not_travel_with_a_later_affine(tmp_path):
    """After a round with `all`, a request with `affine` would publish the statistics."""
    device = Device(tmp_path / "ann")
    device.run(Scene(tmp_path, TOY, ADAM, "all"))
    with pytest.raises(UpdateRefused, match=r"running_mean"):
        device.run(Scene(tmp_path, TOY, ADAM, "affine"), 2)
    assert "bn.running_mean" in Device(tmp_path / "ann", "affine").run(Scene(tmp_path, TOY, ADAM, "affine"), 2)


def test_an_owner_who_keeps_more_is_obeyed_in_the_first_round(tmp_path):
    """With the setting `all` no statistics leave, for any request; with `none` everything may leave."""
    with pytest.raises(UpdateRefused, match="at least all"):
        Device(tmp_path / "ann", "all").run(Scene(tmp_path, TOY, ADAM, "affine"))
    everything = Device(tmp_path / "bob", "none").run(Scene(tmp_path, TOY, ADAM, "none"))
    assert {"bn.weight", "bn.bias:exp_avg", "bn.running_var"} <= everything
