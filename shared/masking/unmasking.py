"""The coordinator's part after the reveals: rebuild one secret of each member, and derive the masks that are in the sum.

For a member that reported, the secret is its self-mask, checked by a commitment; for a lost member it is the mask key, checked
by its public key. It is never both. After a wrong share the rebuilt secret fails the check: then other subsets of shares are
tried, until one passes. A share that is not on its polynomial is the fault of the member that revealed it or of its dealer; the
others cannot see which. So a member is named only if its shares of more than half of the masking set are wrong. Fewer wrong
shares may come from dealers that want the member in quarantine.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_context import MaskingGroup
from fedpatch.shared.masking.keys import PrivateKey, commitment_to, pair_mask_seed, public_key, self_mask_seed
from fedpatch.shared.masking.secret_sharing import interpolate, join_shares
from fedpatch.shared.wire.masking_messages import SHARE_BYTES

# Subsets of shares that are tried for one secret. With a tenth of wrong shares among 20, one of 12 in 30 subsets is good.
MAX_SUBSETS = 500


class OpeningFailed(WireError):
    """A group cannot be opened: too few reveals, or no subset of them rebuilds the secret of a member."""


@dataclass(frozen=True)
class Mask:
    """A keystream to add to elements (`sign` 1) or to subtract from them (-1)."""

    seed: bytes = field(repr=False)
    sign: int


@dataclass(frozen=True)
class Opening:
    """The result of a group's reveals.

    Attributes:
        masks: Masks to add to the sum of the reported updates, which then is the sum of their vectors.
        wrong: Members whose revealed shares are wrong for more than half of the masking set.
    """

    masks: tuple[Mask, ...]
    wrong: frozenset[int]


def masks_of_member(
    group: MaskingGroup, index: int, *, mask_key: bytes, self_mask: bytes, masking_set: Iterable[int]
) -> tuple[Mask, ...]:
    """Return the masks that a member adds to its vector.

    Member i adds the common mask of i and j if i < j, and subtracts it if i > j, so that they cancel in the sum.

    Args:
        index: The member.
        mask_key: Its private mask key.
        self_mask: Its self-mask secret.
        masking_set: Members that mask, this one among them.

    Raises:
        WireError: A public key of the roster is not usable.
    """
    key = PrivateKey(mask_key)
    pairs = (_pair_mask(group, index, other, key) for other in sorted(masking_set) if other != index)
    return (Mask(self_mask_seed(self_mask, group.context), 1), *pairs)


def open_group(
    group: MaskingGroup,
    *,
    masking_set: frozenset[int],
    reported: frozenset[int],
    commitments: Mapping[int, bytes],
    reveals: Mapping[int, tuple[bytes, ...]],
) -> Opening:
    """Rebuild the secrets of a group and return the masks that its sum still has.

    Args:
        masking_set: Members that the inboxes named (U2 in the paper).
        reported: Members whose masked updates are in the sum (U3); a subset of `masking_set`.
        commitments: Commitment of each member of `masking_set`.
        reveals: `Reveal.shares` by the index of the member that sent them.

    Returns:
        The masks to add to the sum modulo 2^bits.

    Raises:
        OpeningFailed: There are fewer reveals than the threshold, or no subset of them rebuilds a secret.
    """
    if len(reveals) < group.threshold:
        raise OpeningFailed(f"{len(reveals)} members revealed their shares, {group.threshold} are needed")
    subsets = _Subsets(group)
    masks: list[Mask] = []
    for member in sorted(masking_set):
        shares = {index: sent[member] for index, sent in reveals.items() if len(sent[member]) == SHARE_BYTES}
        if member in reported:
            secret = subsets.join(shares, member, partial(_is_self_mask, commitments[member], group.context))
            masks.append(Mask(self_mask_seed(secret, group.context), -1))
        else:
            secret = subsets.join(shares, member, partial(_is_mask_key, group.members[member].keys.mask))
            # The lost member's part of each pair is absent from the sum: adding it cancels the other member's part.
            key = PrivateKey(secret)
            masks += [_pair_mask(group, member, other, key) for other in sorted(reported)]
    named = (index for index, count in subsets.wrong.items() if 2 * count > len(masking_set))
    return Opening(tuple(masks), frozenset(named))


def _pair_mask(group: MaskingGroup, index: int, other: int, mask_key: PrivateKey) -> Mask:
    """Return what member `index` adds for its pair with `other`."""
    seed = pair_mask_seed(mask_key, group.members[other].keys.mask, group.context, (index, other))
    return Mask(seed, 1 if index < other else -1)


def _is_self_mask(commitment: bytes, context: bytes, secret: bytes) -> bool:
    return commitment_to(secret, context) == commitment


def _is_mask_key(public: bytes, secret: bytes) -> bool:
    return public_key(secret) == public


class _Subsets:
    """Joins shares of several secrets; members that were wrong once are tried last."""

    def __init__(self, group: MaskingGroup) -> None:
        self.wrong: Counter[int] = Counter()
        self._group = group

    def join(self, shares: Mapping[int, bytes], member: int, is_right: Callable[[bytes], bool]) -> bytes:
        threshold = self._group.threshold
        for subset in self._candidates(sorted(shares), threshold):
            secret = join_shares({index: shares[index] for index in subset})
            if secret is not None and is_right(secret):
                self._find_wrong(shares, subset)
                return secret
        name = self._group.members[member].device
        raise OpeningFailed(f"no {threshold} of {len(shares)} shares lead to the secret of {name}")

    def _candidates(self, indices: list[int], threshold: int) -> Iterator[list[int]]:
        """Yield first the members with the fewest wrong shares, then random subsets, repeatably."""
        if len(indices) < threshold:
            return
        yield sorted(indices, key=lambda index: self.wrong[index])[:threshold]
        if len(indices) == threshold:
            return
        choice = random.Random(self._group.context)
        for _ in range(MAX_SUBSETS):
            yield sorted(choice.sample(indices, threshold))

    def _find_wrong(self, shares: Mapping[int, bytes], subset: list[int]) -> None:
        values = [int.from_bytes(shares[index]) for index in subset]
        self.wrong.update(
            index
            for index, share in shares.items()
            if index not in subset and interpolate(subset, values, at=index + 1) != int.from_bytes(share)
        )
