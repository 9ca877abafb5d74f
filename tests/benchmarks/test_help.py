"""Every benchmark has a help page with its usage, and refuses options that leave nothing to measure."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from fedpatch.shared.app.command import run_app
from tests.benchmarks.test_smoke import COMMANDS
from tests.support.programs import Program


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example(name, monkeypatch, capsys):
    module = import_module(f"benchmarks.{name}")
    words = ["run"] if module.app.registered_callback else []
    ended = Program(lambda: run_app(module.app, name), monkeypatch, capsys)(*words, "--help")
    assert ended.code == 0
    shown = " ".join(ended.out.replace("│", " ").split())
    assert re.search(rf"Example: (FEDPATCH_DATA=\S+ )?python -m benchmarks\.{name}\b", shown)


@pytest.mark.parametrize(("name", "options"), [("device.device", ("--idle-s", 0)), ("network.relays", ("--rounds", 1))])
def test_an_option_that_leaves_nothing_to_report_is_refused(name, options, monkeypatch, capsys):
    module = import_module(f"benchmarks.{name}")
    ended = Program(lambda: run_app(module.app, name), monkeypatch, capsys)(*options)
    assert ended.code == 2
    assert options[0] in ended.err


@pytest.mark.parametrize("name", ["models_by_url", "registries", "blob_stores", "coordination"])
def test_devices_that_are_no_numbers_are_refused_before_anything_is_started(name, monkeypatch, capsys):
    module = import_module(f"benchmarks.network.{name}")
    ended = Program(lambda: run_app(module.app, name), monkeypatch, capsys)("--devices", "10,many")
    assert (ended.code, ended.out) == (2, "")
    assert "--devices: '10,many' is not a list of numbers from 1" in ended.err
