"""Pages of docs that are generated from code: they equal the output of `python -m scripts.reference`."""

from __future__ import annotations

import pytest

from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.errors import EXIT_CODES, EXIT_LESS, FedpatchError
from scripts.reference import configuration
from scripts.reference.__main__ import FOLDER, PAGES
from scripts.reference.markdown import render
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_the_generated_one(name):
    assert (FOLDER / name).read_text("utf-8") == PAGES[name]()
    assert FOLDER == ROOT / "docs"


def test_every_setting_has_an_item_and_sections_name_those_of_other_commands():
    """A setting that two commands share is described once; a group that they share as a whole is named by its title."""
    page = PAGES["reference/configuration.md"]()
    for cls in configuration.COMMANDS:
        section = configuration.reference(cls)
        for one in settings_of(cls):
            assert f"`{one.name}`" in section or f"all of **{one.rules.group}**" in section
            names = [one.name, *(one.name.removeprefix(prefix) for prefix in configuration.ENDS)]
            assert any(f"`{name}` (" in page for name in names)


def test_every_exit_code_of_an_error_has_a_meaning():
    errors: list[type[FedpatchError]] = [FedpatchError, *FedpatchError.__subclasses__()]
    codes = {error.exit_code for error in errors}
    assert set(EXIT_CODES) == codes | {0, EXIT_LESS, 130}


def test_page_of_functions_for_tasks_has_the_methods_with_which_examples_become_data():
    page = PAGES["reference/task-functions.md"]()
    for one in ("Examples.device_data(*masks, train=None", "Examples.take(chosen)", "Examples.of_group(name)"):
        assert f"`{one}" in page
    assert "\n\n\n" not in page


def test_a_part_without_a_placeholder_is_refused():
    with pytest.raises(ValueError, match=r"topics\.md has no placeholder for extra"):
        render("topics.md", topics="", rules="", extra="")
