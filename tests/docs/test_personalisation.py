"""The figures of docs/how-to/personalisation.md are those of the measurement that it names."""

from __future__ import annotations

import json

from fedpatch.shared.app.formatting import size
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "personalisation.md").read_text("utf-8")
DOCUMENT = json.loads((ROOT / "results" / "benchmarks" / "lora-traffic.json").read_text("utf-8"))


def test_the_traffic_with_lora_is_that_of_the_benchmark():
    every, half = DOCUMENT["runs"]
    shown = [
        size(DOCUMENT["model_bytes"]),
        *(f"{size(one['round'])} ({one['share_of_model']:.1%})" for one in (every, half)),
    ]
    assert [words for words in shown if words not in PAGE] == []
    assert every["share_of_model"] <= 0.02
