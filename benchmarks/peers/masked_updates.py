"""Bytes and processor time of an update that a server cannot read, in Flower's SecAgg+ and in NVFlare's encryption.

    .venv-peers/bin/python -m benchmarks.peers.masked_updates SIZE THRESHOLD VALUES LOST

prints JSON: Flower's client steps of a group of SIZE with LOST members gone after sharing, and an update of TenSEAL with the
parameters that NVFlare gives it (CKKS, 8192, [60, 40, 40], scale 2^40). Seconds are processor time of all threads.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

POLYNOMIAL, MODULI, SCALE = 8192, [60, 40, 40], 2**40
CLIPPING, TARGET, MODULUS, MAX_WEIGHT = 8.0, 1 << 22, 1 << 32, 1000.0
"""Defaults of Flower's SecAggPlusWorkflow."""


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its processor time in seconds."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


def flower(size: int, threshold: int, values: int, lost: int) -> dict[str, float]:
    """Return the figures of one client and of the server, by Flower's own functions.

    The server rebuilds a secret of each member: one secret of each kind is timed, and counted as often as needed.
    """
    from flwr.common import ndarrays_to_parameters
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    from flwr.common.secure_aggregation.secaggplus_constants import Key
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    # The package has a function with the name of the module.
    mod = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")

    terms = {
        Key.SAMPLE_NUMBER: size,
        Key.SHARE_NUMBER: size,
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: CLIPPING,
        Key.TARGET_RANGE: TARGET,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: MAX_WEIGHT,
    }
    states = []
    for number in range(size):
        state = mod.SecAggPlusState()
        state.nid = number + 1
        states.append(state)
    seconds = [timed(partial(mod._setup, state, terms))[1] for state in states]
    keys = {str(state.nid): [state.pk1, state.pk2] for state in states}
    shared = [timed(partial(mod._share_keys, state, keys)) for state in states]
    own = states[0]
    sent = [answer for answer, _ in shared[1:]]
    inbox = {
        Key.CIPHERTEXT_LIST: [one[Key.CIPHERTEXT_LIST][one[Key.DESTINATION_LIST].index(own.nid)] for one in sent],
        Key.SOURCE_LIST: [state.nid for state in states[1:]],
    }
    update = ndarrays_to_parameters([np.random.default_rng(0).normal(0, 0.01, values).astype(np.float32)])
    masked, mask_s = timed(lambda: mod._collect_masked_vectors(own, inbox, 300, update))
    active = [state.nid for state in states[lost:]]
    unmask = {Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: [state.nid for state in states[:lost]]}
    revealed, reveal_s = timed(lambda: mod._unmask(own, unmask))
    # One secret of each kind, from the last member.
    shares = _shares_of(states, threshold)
    seed_s, key_s = (timed(partial(combine_shares, one))[1] for one in shares)
    mask_one_s = timed(lambda: pseudo_rand_gen(os.urandom(32), MODULUS, [(values,)]))[1]
    masks = len(active) + lost * len(active)
    ciphertexts = sum(map(len, shared[0][0][Key.CIPHERTEXT_LIST]))
    return {
        "bytes": float(sum(map(len, masked[Key.MASKED_PARAMETERS]))),
        "protocol_bytes_up": float(
            len(own.pk1) + len(own.pk2) + ciphertexts + sum(len(one) for one in revealed[Key.SHARE_LIST])
        ),
        "device_s": seconds[0] + shared[0][1] + mask_s + reveal_s,
        "server_s": len(active) * seed_s + lost * key_s + masks * mask_one_s,
    }


def _shares_of(states: list[Any], threshold: int) -> tuple[list[bytes], list[bytes]]:
    """Return `threshold` shares of a seed and of a key."""
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    last = states[-1]
    seeds = create_shares(last.rd_seed, threshold, len(states))
    keys = create_shares(last.sk1, threshold, len(states))
    return seeds[:threshold], keys[:threshold]


def nvflare(values: int, others: int) -> dict[str, float]:
    """Return the figures of one client, and of the server that adds `others` updates to it."""
    import tenseal

    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, POLYNOMIAL, coeff_mod_bit_sizes=MODULI)
    context.global_scale = SCALE
    update = np.random.default_rng(0).normal(0, 0.01, values).astype(np.float32)
    blob, encrypt_s = timed(lambda: tenseal.ckks_vector(context, update).serialize())
    total, read_s = timed(lambda: tenseal.ckks_vector_from(context, blob))
    _, add_s = timed(lambda: total + total)
    _, decrypt_s = timed(lambda: total.decrypt())
    return {
        "bytes": float(len(blob)),
        "protocol_bytes_up": 0.0,
        "device_s": encrypt_s + read_s + decrypt_s,
        "server_s": (others + 1) * read_s + others * add_s,
    }


def main() -> None:
    """Print the figures of both."""
    size, threshold, values, lost = map(int, sys.argv[1:5])
    found = {"flower": flower(size, threshold, values, lost), "nvflare": nvflare(values, size - lost - 1)}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
