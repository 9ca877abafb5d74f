"""Findings, and how they are printed."""

from __future__ import annotations

import json

import pytest

from fedpatch.shared.diagnostics.checks import Checkup, Finding, conduct


def examine(checkup: Checkup) -> None:
    """One finding of each kind."""
    checkup.say("looking")
    checkup.good("one", "it is there")
    checkup.warn("two", "it is slow", "make it fast")
    checkup.fail("three", "it is absent", "put it there")
    checkup.skip("four", "nobody knows")


@pytest.mark.parametrize(("verdict", "remedy"), [("fail", ""), ("warn", ""), ("ok", "do"), ("skip", "do")])
def test_finding_has_a_remedy_only_for_a_bad_verdict(verdict, remedy):
    with pytest.raises(ValueError, match="have one"):
        Finding("disk", verdict, "text", remedy)


def test_findings_are_printed_with_remedies_below(capsys):
    assert conduct(examine, as_json=False) == 1
    written = capsys.readouterr()
    assert written.err == "looking\n"
    lines = [line.split() for line in written.out.splitlines()]
    assert lines[1] == ["warn", "two", "it", "is", "slow"]
    assert lines[2] == ["remedy:", "make", "it", "fast"]
    assert written.out.splitlines()[-1] == "1 check failed, 1 warning, 1 good, 1 not made"


def test_findings_as_json_are_one_document(capsys):
    assert conduct(examine, as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    three = {"name": "three", "verdict": "fail", "detail": "it is absent", "mend": "put it there"}
    assert (len(document["findings"]), document["findings"][2]) == (4, three)
    assert conduct(lambda checkup: checkup.warn("two", "it is slow", "make it fast"), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
