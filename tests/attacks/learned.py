"""All that an adversary can compute from a masked round: the secrets that its shares rebuild, and the sums that they open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from fedpatch.shared.masking.group_context import MaskingGroup, members_of
from fedpatch.shared.masking.keys import (
    PrivateKey,
    SecretKeys,
    commitment_to,
    pair_mask_seed,
    public_key,
    self_mask_seed,
)
from fedpatch.shared.masking.masked_blob import add_masks
from fedpatch.shared.masking.secret_sharing import join_shares
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.masking_messages import SHARE_BYTES, Reveal, Shares

SELF, KEY = "self", "key"
Names = frozenset[str]


class Member(Protocol):
    """A member in league with the adversary."""

    secrets: SecretKeys

    def opened(self, group: MaskingGroup, sender: int, box: bytes) -> tuple[bytes, bytes]: ...


class Played(Protocol):
    """A masked round as the adversary knows it."""

    group: MaskingGroup
    shares: dict[str, Shares]
    masking_sets: dict[str, Names]
    vectors: dict[str, Array]
    reveals: dict[str, Reveal]

    @property
    def layout(self) -> VectorLayout: ...

    @property
    def colluders(self) -> Mapping[str, Member]: ...


@dataclass(frozen=True)
class Learned:
    """The knowledge of the adversary about one round."""

    round: Played

    @cached_property
    def secrets(self) -> dict[tuple[int, str], bytes]:
        """Secrets by place and kind: those of the colluders, and those that enough shares rebuild."""
        played, group = self.round, self.round.group
        found: dict[tuple[int, str], bytes] = {}
        for (place, kind), shares in self._shares().items():
            if len(shares) >= group.threshold:
                secret = join_shares(dict(sorted(shares.items())[: group.threshold]))
                if secret is not None and self._is_right(place, kind, secret):
                    found[place, kind] = secret
        for place, member in enumerate(group.members):
            if (colluder := played.colluders.get(member.device)) is not None:
                found |= {(place, SELF): colluder.secrets.self_mask, (place, KEY): colluder.secrets.mask}
        return found

    def _shares(self) -> dict[tuple[int, str], dict[int, bytes]]:
        """Return the shares that members revealed, and that colluders have, by their owner and kind."""
        played, group = self.round, self.round.group
        shares: dict[tuple[int, str], dict[int, bytes]] = defaultdict(dict)
        for device, reveal in played.reveals.items():
            holder, reported = group.index(device), members_of(reveal.reported, len(group)) or frozenset()
            assert holder is not None
            for place, share in enumerate(reveal.shares):
                if len(share) == SHARE_BYTES:
                    shares[place, SELF if place in reported else KEY][holder] = share
        for name, colluder in played.colluders.items():
            holder = group.index(name)
            for place, member in enumerate(group.members):
                if holder not in (None, place) and member.device in played.shares:
                    assert holder is not None
                    pair = colluder.opened(group, place, played.shares[member.device].boxes[holder])
                    shares[place, SELF][holder], shares[place, KEY][holder] = pair
        return shares

    def _is_right(self, place: int, kind: str, secret: bytes) -> bool:
        member = self.round.group.members[place]
        if kind == KEY:
            return public_key(secret) == member.keys.mask
        return commitment_to(secret, self.round.group.context) == self.round.shares[member.device].commitment

    def sums(self) -> Iterator[tuple[Names, Array]]:
        """Yield each least set of devices whose sum has no unknown mask, with this sum."""
        group, vectors = self.round.group, self.round.vectors
        sets = {group.index(one): {group.index(two) for two in self.round.masking_sets[one]} for one in vectors}
        seen: set[frozenset[int]] = set()
        for first in sorted(place for place in sets if place is not None):
            part, edge, whole = {first}, [first], True
            while edge and whole:
                one = edge.pop()
                whole = (one, SELF) in self.secrets
                for other in (place for place in sets[one] if place is not None and place != one):
                    if not {(one, KEY), (other, KEY)} & self.secrets.keys():
                        whole &= other in sets and one in sets[other]
                        edge += [] if other in part else [other]
                        part.add(other)
            if whole and frozenset(part) not in seen:
                seen.add(frozenset(part))
                yield self._sum(part, {one: {p for p in sets[one] if p is not None} for one in part})

    def _sum(self, part: set[int], sets: dict[int, set[int]]) -> tuple[Names, Array]:
        group, masks = self.round.group, list[Mask]()
        names = [group.members[place].device for place in sorted(part)]
        for one in part:
            masks.append(Mask(self_mask_seed(self.secrets[one, SELF], group.context), -1))
            for other in sets[one] - {one}:
                if (seed := self._pair_seed(one, other)) is not None:
                    masks.append(Mask(seed, -1 if one < other else 1))
        total = np.zeros_like(self.round.vectors[names[0]])
        for name in names:
            total = total + self.round.vectors[name]
        return frozenset(names), add_masks(total, masks)

    def _pair_seed(self, one: int, other: int) -> bytes | None:
        for owner, peer in ((one, other), (other, one)):
            if (key := self.secrets.get((owner, KEY))) is not None:
                members = self.round.group.members
                return pair_mask_seed(PrivateKey(key), members[peer].keys.mask, self.round.group.context, (one, other))
        return None


def signed(round_: Played, elements: Array) -> Array:
    """Return the values of a vector or a sum, without its figures."""
    layout = round_.layout
    return elements[: layout.num_values].view(f"<i{layout.dtype.itemsize}").astype(np.float64)


def trained(round_: Played, elements: Array) -> Array:
    """Return the values of trained tensors: running statistics move without gradients too."""
    layout = round_.layout
    kept = [np.full(count, spec.trainable) for spec, count in zip(layout.specs, layout.counts, strict=True)]
    found: Array = signed(round_, elements)[np.concatenate(kept)]
    return found


def correlation(found: Array, truth: Array) -> float:
    """Return the absolute correlation of two vectors; 0 for a constant one."""
    if not found.std() or not truth.std():
        return 0.0
    return abs(float(np.corrcoef(found, truth)[0, 1]))


def differences(found: list[Array]) -> Iterator[Array]:
    """Yield each vector, and the difference of each two of one size."""
    yield from found
    yield from (one - two for place, one in enumerate(found) for two in found[:place] if one.shape == two.shape)


def closest(found: list[Array], truth: Array, measure: Callable[[Array, Array], float] = correlation) -> float:
    """Return the greatest correlation of the true vector with anything that was computed."""
    return max((measure(one, truth) for one in differences(found)), default=0.0)
