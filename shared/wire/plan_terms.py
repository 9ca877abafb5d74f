"""Terms of a training plan beyond a strategy's own training: their names, and how settings make them."""

from __future__ import annotations

from typing import Any

PLAN_TERMS = ("prox",)
"""Fields of a TrainPlan that travel only where they are set. Each name is a feature of devices and a setting of runs too."""


def make_terms(prox: float) -> dict[str, Any]:
    """Return the terms of settings as fields of a TrainPlan; a setting at its default gives none."""
    return {"prox": float(prox)} if prox else {}
