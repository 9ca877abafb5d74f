"""Invariants of a world, computed without fedpatch's own arithmetic: the counted updates, the models and the patches.

The oracle observes every commit of the registry, every checkpoint and patch that is moved to its place on the disk, and
every message to a device. It computes the same models and patches on its own and compares them bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import fedpatch.coordinator.runtime.aggregator
import fedpatch.coordinator.runtime.model_packing
from fedpatch.coordinator.aggregation.masked_mean import MaskedMean, masked_mean
from fedpatch.coordinator.blobs.blob_store import FileBlobs
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_phases import RETURN_S
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import _load
from fedpatch.coordinator.storage.rounds_table import RoundsTable
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.state.patch_store import PatchState
from fedpatch.shared.masking.masked_blob import HEADER_BYTES
from fedpatch.shared.mqtt.events import Received
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.masking_messages import Reveal
from fedpatch.shared.wire.messages import Committed, is_delta
from tests.faults.simulated.lesson import FIRST_PATCH, INITIAL, examples, learned

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

Model = Mapping[str, Array]
# Longest time between the due end of a round and its record: a turn of the coordinator's loop.
AT_ONCE_S = 1.0


@dataclass(frozen=True)
class Trained:
    """A device's patch before and after a round that it finished."""

    run: str
    round: int
    before: Model
    after: Model


class Oracle:
    """The oracle of one world. A violated invariant raises an AssertionError that names it."""

    def __init__(self, world: World) -> None:
        self.models: dict[tuple[str, int], Model] = {}
        self.committed: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
        self.records: dict[tuple[str, int], RoundRecord] = {}
        self.patches: dict[str, list[Trained]] = defaultdict(list)
        self.damaged = False
        # Of masked rounds: the vectors that devices masked, the devices of each sum, and the shares revealed in each group.
        self.vectors: dict[tuple[str, str, int], bytes] = {}
        self.summed: dict[str, tuple[str, ...]] = {}
        self._number = 0
        self._revealed: dict[tuple[str, bytes], Reveal] = {}
        self.run = ""
        self._world = world
        self._ever: set[tuple[str, str]] = set()
        self._bases: dict[str, Model] = {}
        self._published: dict[str, Model] = {}
        self._base_named: dict[tuple[str, int], str] = {}
        self._made: dict[tuple[str, str, int, str], Model] = {}
        self._saving: dict[str, tuple[TrainCommand, PatchState]] = {}
        self._opened: dict[tuple[str, int], float] = {}
        self._ended: dict[tuple[str, int], float] = {}
        self._last_opened = 0.0
        self._stands_still_since: float | None = None
        # Of buffered rounds: committed updates that no version has used yet, and the version that used each other update.
        self._pool: dict[tuple[str, int, str], str] = {}
        self.folded: dict[tuple[str, int, str], int] = {}
        self.staleness: list[int] = []

    # ---- events

    def installed(self, patch: pytest.MonkeyPatch) -> None:
        """From now on the oracle observes each write of the registry after it is done."""
        self._after(patch, RoundsTable, "open", self._open)
        self._after(patch, RoundsTable, "add_updates", self._add)
        self._after(patch, RoundsTable, "close", self._close)
        self._after(patch, RoundsTable, "finish", self._finish)
        self._after(patch, RoundsTable, "pause", lambda run, spent_s: self.stands_still(self._world.now))
        self._before(patch, RoundsTable, "roll_back", self._roll_back)
        self._after(patch, RoundsTable, "drop_update", self._drop)
        patch.setattr(fedpatch.coordinator.runtime.aggregator, "masked_mean", self._masked_mean)
        pack_model = fedpatch.coordinator.runtime.model_packing.pack_model

        def packed(state: Any, *given: Any) -> Any:
            blob, manifest = pack_model(state, *given)
            self._published[manifest.digest] = {name: state.tensors[name] for name in state.tensors}
            return blob, manifest

        patch.setattr(fedpatch.coordinator.runtime.aggregator, "pack_model", packed)
        real = Registry.create_run

        def create_run(registry: Registry, **given: Any) -> Any:
            made = real(registry, **given)
            self.run = made.id
            return made

        patch.setattr(Registry, "create_run", create_run)

    def stands_still(self, since: float) -> None:
        """Do not count the time from `since` until the round is resumed against its deadline."""
        known = self._stands_still_since
        self._stands_still_since = since if known is None else min(known, since)

    def reboots(self) -> None:
        """The coordinator's clocks may not show the time since the round was opened or resumed, so do not count it."""
        self.stands_still(self._last_opened)

    def saving(self, device: str, command: TrainCommand, after: PatchState) -> None:
        """A device is about to save this patch."""
        self._saving[device] = command, after

    def replaced(self, path: str) -> None:
        """A written file has replaced the file at `path`."""
        place = Path(path)
        if place.name.startswith("checkpoint-"):
            self._checkpointed(place)
        elif place.suffix == ".patch":
            self._saved(place.parts[-3])

    def on_event(self, device: str, event: object) -> None:
        """Check that a device receives `committed` only for an update in the registry."""
        if isinstance(event, Received) and event.topic.endswith("/dn"):
            envelope = decode(event.payload)
            if isinstance(envelope.body, Committed):
                known = (device, envelope.body.digest) in self._ever
                assert known, (
                    f"{device} receives committed in round {envelope.round} of what the registry does not have"
                )

    def on_publish(self, topic: str, payload: bytes) -> None:
        """Check that a device never reveals more than one secret of each member of its group."""
        if not topic.endswith("/up"):
            return
        body = decode(payload).body
        if isinstance(body, Reveal):
            known = self._revealed.setdefault((topic, body.context), body)
            assert known == body, f"{topic} reveals other shares than before"

    # ---- the coordinator

    def _masked_mean(self, groups: Any, read: Any, **given: Any) -> MaskedMean:
        """Check that the sum of the groups is the sum of the vectors that their devices masked, in integers."""
        made = masked_mean(groups, read, **given)
        layout, base = given["layout"], given["base"]
        counted = tuple(sorted(device for group in groups for device in group.devices))
        assert not made.left_out
        total = np.zeros(layout.num_values, np.int64)
        for device in counted:
            elements = self.vectors[device, self.run, self._number][HEADER_BYTES:]
            total += np.frombuffer(elements, np.int8)[: layout.num_values]
        weight = sum(min(examples(device), layout.terms.weight_cap) for device in counted)
        step = total * (layout.ranges[0] / layout.top * layout.terms.weight_cap / weight)
        expected = base["body.weight"].astype(np.float64) + step.reshape(base["body.weight"].shape)
        assert made.mean["body.weight"].tobytes() == expected.astype(np.float32).tobytes(), (
            "the masked sum is another one"
        )
        assert made.mean["body.steps"] == base["body.steps"]
        self.summed[self.run] = counted
        return made

    def _after(self, patch: pytest.MonkeyPatch, owner: type, name: str, callback: Any) -> None:
        real = getattr(owner, name)

        def method(tables: Any, *args: Any, **given: Any) -> Any:
            done = real(tables, *args, **given)
            callback(*args, **given)
            return done

        patch.setattr(owner, name, method)

    def _before(self, patch: pytest.MonkeyPatch, owner: type, name: str, callback: Any) -> None:
        """Call back before a method of several writes: the first write counts, and a kill may come before the last."""
        real = getattr(owner, name)

        def method(tables: Any, *args: Any, **given: Any) -> Any:
            callback(*args, **given)
            return real(tables, *args, **given)

        patch.setattr(owner, name, method)

    def _open(self, run: str, journal: RoundJournal, now: BootTime) -> None:
        key = (run, journal.round)
        self._number = journal.round
        self.run = run  # the process may have been killed before it reported the run
        assert key not in self.records, f"round {journal.round} opens though it is over"
        if key not in self._opened:
            self._opened[key] = self._world.now
        elif self._stands_still_since is not None:
            self._opened[key] += self._world.now - self._stands_still_since
        self._stands_still_since = None
        self._last_opened = self._world.now
        base = self._base_of(run, journal.round)
        if self._world.settings.masked and journal.base in self._published:
            moved = self._published[journal.base]
            assert all(np.allclose(moved[name], base[name], rtol=2e-6, atol=1e-37) for name in base), (
                "the base is another one"
            )
            base = moved
        self._base_named[key] = journal.base
        known = self._bases.setdefault(journal.base, base)
        assert _same(known, base), f"round {journal.round} opens with another model than its base"
        self._world.note(
            f"round {journal.round} opens: {', '.join(journal.invited)}; committed {_names(self.committed[key])}"
        )

    def _add(self, run: str, updates: Sequence[StoredUpdate], accepted: Collection[str] = ()) -> None:
        for update in updates:
            key = (run, update.round)
            over = key in self.records and not self._carries
            assert not over, f"{update.device} is committed to round {update.round}, which is over"
            self._pooled(run, update)
            before = self.committed[key].setdefault(update.device, update.digest)
            assert before == update.digest, f"{update.device} is committed twice to round {update.round}"
            self._ever.add((update.device, update.digest))
        for update in updates:  # one commit: a fault that the first note sets off comes after all of them
            self._world.note(f"round {update.round}: the update of {update.device} is in the registry")

    @property
    def _carries(self) -> bool:
        return self._world.settings.late == "carry"

    def _pooled(self, run: str, update: StoredUpdate) -> None:
        if self._carries:
            key = (run, update.round, update.device)
            assert key not in self.folded, f"{update.device} is committed again to round {update.round}"
            self._pool[key] = update.digest

    def _close(self, run: str, devices: Collection[str]) -> None:
        """Drop an update that arrived together with the last counted update; its device did not receive `committed`."""
        self._pool = {key: digest for key, digest in self._pool.items() if key[0] != run or key[2] in devices}
        if self._carries:
            return
        for key, updates in self.committed.items():
            if key[0] == run and key not in self.records:
                for device in updates.keys() - set(devices):
                    del updates[device]

    def _checkpointed(self, path: Path) -> None:
        state, _, meta = _load(FileBlobs(path.parent), path.name)
        if "record" not in meta:
            assert _same(state.tensors, INITIAL), "the run does not begin with the initial model"
            return
        record = RoundRecord.from_dict(meta["record"])
        key = (path.parent.name, record.round)
        self._books(key[0], record)
        model: Model = state.tensors
        if self._world.settings.masked:  # `_masked_mean` has checked it
            self.models[key] = model
            self._ended[key] = self._world.now
            return
        expected = self._carried_mean(key) if self._carries else self._mean(key)
        coarse = is_delta(self._world.settings.encoding)
        assert _same(model, expected) or (coarse and self._about(model, expected, key)), (
            f"the model after round {record.round} is not the mean of {_names(self.committed[key])}"
        )
        self.models[key] = model
        self._ended[key] = self._world.now
        for one in [one for one in self._pool if one[0] == key[0]]:
            self.folded[one] = record.round
            del self._pool[one]

    def _finish(self, run: str, record: RoundRecord, carried: Mapping[str, Any] | None = None) -> None:
        key = (run, record.round)
        self.records[key] = record
        self._books(run, record)
        self._world.note(
            f"round {record.round} is over: {record.outcome} {record.failure} of {record.reported} updates"
        )
        aggregated = record.outcome == "aggregated"
        assert aggregated == (key in self.models), f"round {record.round} is {record.outcome}; is there a model of it?"
        policy = self._world.coordinator.settings
        due = self._opened[key] + (policy.deadline_s or record.deadline_s) + policy.grace_s
        due += max(policy.unmask_s, RETURN_S) if policy.masked else 0.0
        due = max(due, self._last_opened, self._world.coordinator.started_at[-1]) + AT_ONCE_S
        # The time of the checkpoint counts: after a crash between the two writes, the registry follows the checkpoint.
        ended = self._ended.get(key, self._world.now)
        assert ended <= due, f"round {record.round} ends {ended - due:.1f} s after it had to"

    def _books(self, run: str, record: RoundRecord) -> None:
        counted: Collection[str] = self.committed[run, record.round]
        if self._carries:
            counted = [device for owner, _, device in self._pool if owner == run]
            counted += [key[2] for key, number in self.folded.items() if (key[0], number) == (run, record.round)]
            if record.buffered is not None and record.buffered.unused:
                assert self._is_last(run, record), f"round {record.round} leaves updates unused, and the run goes on"
                self._pool = {key: digest for key, digest in self._pool.items() if key[0] != run}
        if self._world.settings.masked:
            assert set(self.summed.get(run, ())) <= set(counted) or record.outcome == "failed"
            if record.outcome == "failed":
                return
            counted = self.summed[run]
        in_books = (record.reported, record.num_examples)
        expected = (len(counted), sum(map(examples, counted)))
        assert in_books == expected, (
            f"round {record.round} counts {in_books} updates and examples, committed are {expected}: {_names(counted)}"
        )

    def _is_last(self, run: str, record: RoundRecord) -> bool:
        """Return whether a run ends with this round: it is the last round, or too many rounds in a row have failed."""
        settings = self._world.settings
        ended = {number: one.outcome for (owner, number), one in self.records.items() if owner == run}
        before = range(record.round - settings.max_failed_rounds + 1, record.round)
        failed = record.outcome == "failed" and all(ended.get(number) == "failed" for number in before)
        return failed or record.round >= settings.rounds

    def _roll_back(self, run: str, last: int) -> None:
        assert self.damaged, f"the run goes back to round {last} though no checkpoint was damaged"
        for known in (self.models, self.committed, self.records, self._opened, self._ended):
            for key in [one for one in known if one[0] == run and one[1] > last]:
                del known[key]
        self._pool = {key: digest for key, digest in self._pool.items() if key[0] != run}
        self.folded = {key: number for key, number in self.folded.items() if key[0] != run or number <= last}

    def _drop(self, run: str, number: int, device: str) -> None:
        if self._carries and self.damaged:  # its base was lost with a damaged checkpoint
            self._pool.pop((run, number, device), None)
            return
        raise AssertionError(f"the update of {device} in round {number} is dropped though nobody damaged it")

    def _base_of(self, run: str, number: int) -> Model:
        before = [one for one in self.models if one[0] == run and one[1] < number]
        return self.models[max(before)] if before else INITIAL

    def _mean(self, key: tuple[str, int]) -> Model:
        """Return the mean weighted by examples, in float64, in the order of device names; integers are rounded."""
        base = self._base_named[key]
        updates = {device: self._made[device, *key, base] for device in sorted(self.committed[key])}
        total = sum(map(examples, updates))
        mean: dict[str, Array] = {}
        for name, like in INITIAL.items():
            summed = np.zeros(like.shape, np.float64)
            for device, update in updates.items():
                summed += update[name].astype(np.float64) * float(examples(device))
            value = summed / total
            mean[name] = np.asarray(np.rint(value) if like.dtype.kind == "i" else value).astype(like.dtype)
        return mean

    def _carried_mean(self, key: tuple[str, int]) -> Model:
        """Return the mean of a buffered round: an update of an older base counts as its difference from it, and less."""
        run, number = key
        present = self._base_of(run, number)
        pooled = sorted((device, of) for owner, of, device in self._pool if owner == run)
        sums = {name: np.zeros(like.shape, np.float64) for name, like in INITIAL.items()}
        total = 0.0
        for device, of in pooled:
            digest = self._base_named[run, of]
            update, base = self._made[device, run, of, digest], self._bases[digest]
            age = sum(1 for owner, after in self.models if owner == run and of <= after < number)
            assert age <= self._world.settings.max_staleness, f"{device} is {age} versions old in round {number}"
            self.staleness.append(age)
            weight = examples(device) * (1 + age) ** -self._world.settings.staleness_power
            for name, summed in sums.items():
                moved = update[name]
                if age:
                    moved = (present[name] + (update[name].astype(np.float64) - base[name])).astype(moved.dtype)
                summed += moved.astype(np.float64) * weight
            total += weight
        mean = {name: summed / total for name, summed in sums.items()}
        return {
            name: np.asarray(np.rint(value) if INITIAL[name].dtype.kind == "i" else value).astype(INITIAL[name].dtype)
            for name, value in mean.items()
        }

    def _about(self, model: Model, expected: Model, key: tuple[str, int]) -> bool:
        """Return whether rounding explains the difference from the mean: larger updates and steps are rounded more coarsely.

        Integers are exact. Other tests check how coarse the steps are; this one checks that all sides use the same steps.
        """
        if self._carries:
            return self._moved_about(model, expected, key)
        base = self._base_named[key]
        updates = [self._made[device, *key, base] for device in self.committed[key]]
        longest = max(np.abs(one["body.weight"] - self._bases[base]["body.weight"]).max() for one in updates)
        out = {name: np.abs(model[name] - expected[name]).max() for name in expected}
        return bool(out["body.weight"] <= 3 * longest and out["body.steps"] == 0)

    def _moved_about(self, model: Model, expected: Model, key: tuple[str, int]) -> bool:
        longest = 0.0
        for owner, of, device in self._pool:
            if owner == key[0]:
                digest = self._base_named[owner, of]
                change = self._made[device, owner, of, digest]["body.weight"] - self._bases[digest]["body.weight"]
                longest = max(longest, float(np.abs(change).max()))
        out = {name: np.abs(model[name] - expected[name]).max() for name in expected}
        return bool(out["body.weight"] <= 3 * longest and out["body.steps"] == 0)

    # ---- the devices

    def _saved(self, device: str) -> None:
        command, state = self._saving.pop(device)
        run, number = command.key.run, command.key.round
        history = self.patches[device]
        before = self.before(device, run, number)
        while history and history[-1].run == run and history[-1].round >= number:
            history.pop()
        base = self._bases[command.base]
        update, patch = learned(base, before, device, number)
        self._made[device, run, number, command.base] = update
        history.append(Trained(run, number, before, patch))
        self._world.note(f"{device} saved its patch of round {number}")
        rounds = ", ".join(str(one.round) for one in history)
        assert _same(state.values, patch), f"the patch of {device} is not that of rounds {rounds}, each applied once"

    def before(self, device: str, run: str, number: int) -> Model:
        """Return the patch at the start of round `number`: the result of the rounds before it, each applied once.

        A device keeps two versions. If the coordinator goes back further, the device begins with the input of the older one.
        """
        kept = [one for one in self.patches[device][-2:] if one.run == run]
        if kept and number < kept[0].round:
            return kept[0].before
        earlier = [one for one in self.patches[device] if one.run != run or one.round < number]
        return earlier[-1].after if earlier else FIRST_PATCH


def _same(one: Model, other: Model) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one
    )


def _names(devices: Collection[str]) -> str:
    return ", ".join(sorted(devices)) or "nobody"
