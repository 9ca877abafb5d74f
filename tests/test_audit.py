"""What `make audit` says of a report, and that it never takes silence for a clean bill of health."""

from __future__ import annotations

from tests.support.audit import IGNORED, error_text, judge

FINE = {"name": "fine", "version": "1.0", "vulns": []}
SKIPPED = {"name": "ours", "skip_reason": "Dependency not found on PyPI and could not be audited: ours (1.0)"}
LEAKY = {
    "name": "leaky",
    "version": "2.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.1"], "description": "long"}],
}


def test_a_vulnerability_is_named_with_its_mend():
    """Once, by its id."""
    verdict = judge({"dependencies": [FINE, LEAKY]}, {})
    assert verdict.vulnerable == ("leaky 2.0: PYSEC-1, mended in 2.1",)
    assert error_text(verdict)[-1] == "2 of 2 pinned packages audited, 1 vulnerabilities"


def test_one_that_was_explained_is_told_with_the_reason():
    """By its id or by another name of it."""
    for name in ("PYSEC-1", "CVE-1"):
        verdict = judge({"dependencies": [LEAKY]}, {name: "we never call it"})
        assert verdict.vulnerable == ()
        assert error_text(verdict)[0].endswith("ignored: we never call it")


def test_packages_that_nobody_knows_are_not_called_clean():
    """An index that knows none of them has audited nothing."""
    assert error_text(judge({"dependencies": [SKIPPED, SKIPPED]}, {})) == [
        "not audited: the index that answered knows none of the 2 pinned packages"
    ]
    assert error_text(judge({"dependencies": [SKIPPED, FINE]}, {})) == [
        "not audited, for the index does not know them: ours",
        "1 of 2 pinned packages audited, 0 vulnerabilities",
    ]


def test_every_exception_has_its_reason():
    """Nothing is ignored without a word."""
    assert all(len(reason) > 20 for reason in IGNORED.values())
