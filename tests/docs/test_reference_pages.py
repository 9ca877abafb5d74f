"""Pages of docs that are made from the code and the results: they are those that `python -m scripts.reference` writes."""

from __future__ import annotations

import pytest

from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.errors import EXIT_CODES, EXIT_LESS, FedpatchError
from scripts.reference import configuration
from scripts.reference.__main__ import FOLDER, PAGES
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_the_generated_one(name):
    assert (FOLDER / name).read_text("utf-8") == PAGES[name]()
    assert FOLDER == ROOT / "docs"


def test_every_setting_has_an_item_or_names_the_command_that_describes_it():
    """A setting that two commands have alike is described once."""
    page = PAGES["reference/configuration.md"]()
    for cls in configuration.COMMANDS:
        section = configuration.reference(cls)
        assert all(f"`{one.name}`" in section and f"\n- `{one.name}` (" in page for one in settings_of(cls))


def test_every_exit_code_of_an_error_has_a_meaning():
    errors: list[type[FedpatchError]] = [FedpatchError, *FedpatchError.__subclasses__()]
    codes = {error.exit_code for error in errors}
    assert set(EXIT_CODES) == codes | {0, EXIT_LESS, 130}
