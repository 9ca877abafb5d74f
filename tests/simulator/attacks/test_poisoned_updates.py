"""Updates of bad devices: their formulas, and the properties that let them pass the checks of an update."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import UsageError
from fedpatch.simulator.attacks.poisoned_updates import STRENGTHS, Attack, KnownSteps, parse_attack, poison

BASE = {"w": np.array([1.0, 2.0], np.float32), "stat": np.array([5.0], np.float32)}
OWN = {"w": np.array([2.0, 0.0], np.float32), "stat": np.array([6.0], np.float32)}
OTHERS = ([3.0, 2.0], [1.0, 4.0])  # steps (2, 0) and (0, 2): mean (1, 1), deviation (1, 1)


def known(others=OTHERS):
    steps = KnownSteps(BASE, ["w"])
    for values in others:
        steps.add({"w": np.array(values, np.float32)})
    return steps


def sent(text, **terms):
    return poison(parse_attack(text), OWN, known(), np.random.default_rng(0), **terms)["w"].tolist()


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("sign", [1 - 4 * 1, 2 - 4 * -2]),
        ("sign:2", [1 - 2 * 1, 2 - 2 * -2]),
        ("alie:3", [1 + 1 - 3, 2 + 1 - 3]),
        ("ipm:2", [1 - 2, 2 - 2]),
        ("labels", [2, 0]),
        ("backdoor:5", [1 + 5, 2 - 10]),
        ("copy", [2, 0]),
    ],
)
def test_poison_sends_the_step_of_the_attack(attack, expected):
    assert sent(attack) == expected


def test_backdoor_without_strength_is_boosted_as_asked():
    assert sent("backdoor", boost=3.0) == [1 + 3, 2 - 6]


def test_noise_has_the_strength_times_the_root_mean_square_of_the_step():
    base, names = {"w": np.zeros(10_000)}, ["w"]
    own = {"w": np.full(10_000, 0.5)}
    noise = poison(Attack("noise", 20.0), own, KnownSteps(base, names), np.random.default_rng(1))["w"] - own["w"]
    assert np.std(noise) == pytest.approx(20 * 0.5, rel=0.05)


@given(st.sampled_from(sorted(STRENGTHS)), st.integers(0, 2**32 - 1))
def test_poison_is_a_function_of_its_arguments_and_changes_trained_tensors_only(kind, seed):
    attack = parse_attack(kind)
    twice = [poison(attack, OWN, known(), np.random.default_rng(seed)) for _ in range(2)]
    assert twice[0]["w"].tobytes() == twice[1]["w"].tobytes()
    assert twice[0]["stat"].tobytes() == OWN["stat"].tobytes()
    assert {name: (array.dtype, array.shape) for name, array in twice[0].items()} == {
        name: (array.dtype, array.shape) for name, array in OWN.items()
    }


@given(st.floats(1e-3, 1e6), st.sampled_from([kind for kind in STRENGTHS if kind != "labels"]))
def test_attack_survives_its_text(strength, kind):
    attack = parse_attack(f"{kind}:{strength}")
    assert parse_attack(str(attack)).kind == kind
    assert parse_attack(str(attack)).strength == pytest.approx(strength, rel=1e-5)


@pytest.mark.parametrize(
    "text", ["", "krum", "sign:", "sign:0", "sign:-1", "sign:nan", "sign:1e7", "labels:2", "ipm:x"]
)
def test_text_that_is_no_attack_is_refused(text):
    with pytest.raises(UsageError):
        parse_attack(text)
