"""Each client's patch is stored separately, and needs only the memory of its values."""

from __future__ import annotations

import numpy as np
import pytest

from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.simulator.clients.patches import Patches
from tests.simulator.studies import POLICIES, UNEVEN, build_model

CLIENTS = 5


def patches_under(private: str, moments: tuple[str, ...] = ()) -> Patches:
    whole = schema_of(build_model()).with_moments(moments)
    return Patches(whole.subset(parse_policy(private).private_names(whole)), initial_tensors(UNEVEN, 3), CLIENTS)


@pytest.mark.parametrize("private", POLICIES)
def test_untrained_client_has_the_initial_patch(private):
    patches, initial = patches_under(private, ("exp_avg", "step")), initial_tensors(UNEVEN, 3)
    for client in range(CLIENTS):
        for name, array in patches.of(client).items():
            expected = initial.get(name, np.zeros_like(array))
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
    assert patches.private_names == parse_policy(private).private_names(schema_of(build_model()))


def test_a_kept_patch_is_that_clients_alone():
    patches = patches_under("all")
    before = [patches.of(client) for client in range(CLIENTS)]
    new = {name: np.asarray(array + 1, array.dtype) for name, array in before[2].items()}
    patches.keep(2, new | {"fc1.weight": np.zeros(3)})
    for client in range(CLIENTS):
        for name, array in patches.of(client).items():
            np.testing.assert_array_equal(array, new[name] if client == 2 else before[client][name])


def test_a_patch_costs_what_it_holds():
    patches = patches_under("all")
    assert patches.nbytes_per_client == sum(array.nbytes for array in patches.of(0).values())
    assert patches_under("none").nbytes_per_client == 0
