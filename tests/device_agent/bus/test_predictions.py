"""Predictions for payloads of a bus: a payload that fits gets an answer, any other an error as JSON, and nothing raises."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.bus.predictions import MAX_PAYLOAD_BYTES, answer
from fedpatch.device_agent.bus.service import RELOAD_EVERY_S, Bus, topics_of
from fedpatch.device_agent.bus.settings import BusSettings
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.client import Received
from tests.device_agent.exported_models import onnx_of, publish
from tests.device_agent.toy_tasks import TOY


def model(**changes: Any) -> Any:
    """A model whose outputs are the sums of an example and of its negative."""
    terms = {"input_shape": (2, 2), "input_dtype": "float32", "class_names": ("up", "down"), "prepare": None}
    metadata = SimpleNamespace(**{**terms, "run": "r-1", "round": 7, **changes})

    def predict(inputs: np.ndarray, *, prepared: bool = False) -> np.ndarray:
        assert inputs.shape == (1, 2, 2) and inputs.dtype == np.float32
        return np.stack([inputs.sum((1, 2)), -inputs.sum((1, 2))], 1)

    return SimpleNamespace(metadata=metadata, predict=predict)


@pytest.mark.parametrize("payload", ["[[1, 2], [3, 4]]", "[1, 2, 3, 4]", '{"values": [1, 2, 3, 4], "unit": "g"}'])
def test_example_is_answered_with_outputs_and_class(payload):
    found = answer(model(), payload.encode())
    assert found == {"outputs": [10.0, -10.0], "class": "up", "run": "r-1", "round": 7}


def test_features_of_the_task_make_the_example_of_any_json():
    def features(payload: Any) -> np.ndarray:
        return np.array(payload["readings"][-4:])

    assert answer(model(), b'{"readings": [9, 9, 1, 2, 3, 4]}', features)["outputs"] == [10.0, -10.0]
    assert "KeyError" in answer(model(), b"{}", features)["error"]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"[1, 2]", "has 2 values; the model takes 4"),
        (b'["a", "b", "c", "d"]', "no number"),
        (b"[[1], [2, 3]]", "rows differ in length"),
        (b"[true, 0.5, 1, 1]", "True or False beside other values"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"null", "has 1 values; the model takes 4"),
        (b" " * (MAX_PAYLOAD_BYTES + 1), "at most"),
    ],
)
def test_payload_that_does_not_fit_is_an_error_that_names_the_problem(payload, problem):
    assert problem in answer(model(), payload)["error"]


@pytest.mark.parametrize("payload", [b"[1, 2, 3, 2.7]", b"[1, 2, 3, 300]", b"[1, 2, 3, -1]", b"[1, 2, 3, NaN]"])
def test_number_that_a_model_of_integers_cannot_hold_is_an_error(payload):
    """A cast would change it, and the answer would be that for another example."""
    assert "ValueError: holds " in answer(model(input_dtype="uint8"), payload)["error"]


def test_model_that_fails_is_an_error_and_not_the_end():
    broken = model()
    broken.predict = lambda inputs, prepared=False: 1 / 0
    assert "ZeroDivisionError" in answer(broken, b"[1, 2, 3, 4]")["error"]


def test_outputs_that_are_no_numbers_are_null_without_a_class():
    odd = model()
    odd.predict = lambda inputs, prepared=False: np.array([[np.nan, np.inf]])
    assert answer(odd, b"[1, 2, 3, 4]") == {"outputs": [None, None], "run": "r-1", "round": 7}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["values", "a"]), inner, max_size=2),
    max_leaves=12,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_payload_gives_outputs_or_an_error_that_json_can_hold(payload):
    found = answer(model(), payload)
    assert ("error" in found) != ("outputs" in found)
    json.dumps(found, allow_nan=False)


def test_outputs_beyond_the_brokers_limit_are_answered_with_an_error(tmp_path):
    publish(ModelStore(tmp_path / MODELS_DIRECTORY, 1), 1, onnx_of(TOY, (12,)))
    settings = BusSettings(state_dir=tmp_path, device_id="pi", serve=("in -> out",), switch=False)
    sent: list[dict[str, Any]] = []

    def send(topic: str, payload: bytes, retain: bool) -> None:
        if b'"outputs"' in payload:
            raise BrokerError("accepts packets of 100 bytes")
        sent.append(json.loads(payload))

    bus = Bus(settings, topics_of(settings), send)
    bus.look(0.0)
    bus.take(Received("in", json.dumps([0.5] * 12).encode(), False))
    assert sent == [{"error": "the outputs are too large for the broker"}]


def test_personal_model_of_a_device_answers_and_is_replaced_by_a_newer_one(tmp_path, monkeypatch):
    """The real ONNX model, through the events of the bus."""
    store, onnx = ModelStore(tmp_path / MODELS_DIRECTORY, 1), onnx_of(TOY, (12,))
    publish(store, 1, onnx, class_names=("a", "b", "c"))
    settings = BusSettings(state_dir=tmp_path, device_id="pi", serve=("in -> out",), switch=False)
    sent: list[tuple[str, dict[str, Any]]] = []
    bus = Bus(settings, topics_of(settings), lambda topic, payload, retain: sent.append((topic, json.loads(payload))))
    bus.look(0.0)
    bus.take(Received("in", json.dumps([0.5] * 12).encode(), False))
    topic, first = sent[-1]
    assert (topic, first["round"], len(first["outputs"])) == ("out", 1, 3)
    assert first["class"] == "abc"[int(np.argmax(first["outputs"]))]
    publish(store, 2, onnx)
    bus.look(RELOAD_EVERY_S)
    bus.take(Received("in", b'{"values": [1, 2]}', False))
    assert "has 2 values" in sent[-1][1]["error"]
    bus.take(Received("in", json.dumps([0.5] * 12).encode(), False))
    assert sent[-1][1]["round"] == 2
