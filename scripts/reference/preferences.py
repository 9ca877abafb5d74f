"""The page preferences.md: the preferences from their records; the rest is its template."""

from __future__ import annotations

from fedpatch.device_agent.policy.preference_rules import PREFERENCES, Preference
from scripts.reference.markdown import render, table

_HEADER = ("key", "requires", "word sent", "if unknown", "asked again after")


def page() -> str:
    """Return the page."""
    rows = [
        (
            f"`{name}`",
            one.requires,
            f"`{one.condition}`",
            _if_unknown(one),
            one.ends or _time(one.retry_after_s),
        )
        for name, one in PREFERENCES.items()
    ]
    return render("preferences.md", preferences=table(_HEADER, rows))


def _asked_again(one: Preference) -> str:
    return one.ends or _time(one.retry_after_s)


def _if_unknown(one: Preference) -> str:
    return {True: "allow", False: "deny", None: ""}[one.allowed_if_unknown]


def _time(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"
