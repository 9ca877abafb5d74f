"""The page files.md: files of the state directories, from their declarations."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.coordinator.operations.state_files import STATE_FILES as OF_COORDINATOR
from fedpatch.device_agent.state.state_files import STATE_FILES as OF_DEVICE
from fedpatch.shared.app.files import StateFile
from scripts.reference.markdown import render, table


def page() -> str:
    """Return the page."""
    return render("files.md", coordinator=_table(OF_COORDINATOR), device=_table(OF_DEVICE))


def _table(files: Sequence[StateFile]) -> str:
    return table(("path", "content", "if lost"), [(f"`{one.path}`", one.content, one.loss) for one in files])
