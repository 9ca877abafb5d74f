"""The owner's file that decides about requests."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from fedpatch.device_agent.policy.admission_file import text_of
from fedpatch.device_agent.policy.admission_mode import parse_admission_mode


@pytest.mark.parametrize("kind", ["pipe", "folder", "absent"])
def test_owners_file_that_is_no_file_does_not_hold_the_agent_up(tmp_path, caplog, kind):
    order = tmp_path / "order"
    if kind == "pipe":
        os.mkfifo(order)
    elif kind == "folder":
        order.mkdir()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(text_of, parse_admission_mode(f"file:{order}"))
        wait([asked], timeout=10.0)
        if not asked.done():
            os.close(os.open(order, os.O_WRONLY))
        assert asked.result() is None
    assert f"{order}: " in caplog.text and "write 'accept' into it" in caplog.text


def test_only_the_beginning_of_the_owners_file_is_read(tmp_path):
    order = tmp_path / "order"
    order.write_text("accept\n" + "x" * 100_000)
    text = text_of(parse_admission_mode(f"file:{order}"))
    assert text is not None and text.startswith("accept\n") and len(text) < 10_000
