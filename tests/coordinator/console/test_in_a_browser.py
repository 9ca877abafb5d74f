"""The console as Chromium shows it: rounds as they end, actions, the content security policy, both schemes, any width."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the console is not installed (pip install 'fedpatch[console]')")

from fedpatch.coordinator.console.words import STATE_WORDS
from fedpatch.coordinator.observability.status_follower import PATIENCE_S, StatusFollower
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.mqtt.events import Received
from tests.coordinator.console.consoles import FLEET, TOKEN, Served, filled, served
from tests.coordinator.observability.statuses import collecting
from tests.coordinator.observability.statuses import fleet as participants
from tests.coordinator.registry_builders import new_run
from tests.coordinator.report.report_runs import record
from tests.support.browser import Browser, browser

# The first test waits for the start of Chromium, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(600)

_ROUNDS = "document.querySelectorAll('#rounds-table tbody tr').length"
_WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
_MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_complaints(chromium) -> Iterator[None]:
    """No page writes to the browser's console or sends a request to another host, unless the test clears both lists."""
    chromium.complaints.clear()
    chromium.requests.clear()
    yield
    # The console of a test ends before the page; then the page's event stream fails.
    assert [one for one in chromium.complaints if '"EventSource"' not in one and '/events"' not in one] == []
    assert [url for url in chromium.requests if not url.startswith(("http://127.0.0.1:", "about:"))] == []


def _open(chromium: Browser, console: Served, rounds: int, **view: Any) -> None:
    chromium.open(console.url, **view)
    chromium.wait_for(f"{_ROUNDS} === {rounds}")


_HOLD_FIRST_RUN = """
(() => {
  const real = window.fetch;
  let held = false;
  window.fetch = (...request) => {
    if (held || !String(request[0]).includes("/api/runs/")) return real(...request);
    held = true;
    return new Promise(answer => {
      window.release = () => { answer(real(...request)); setTimeout(() => { window.released = true; }, 500); };
    });
  };
})()
"""
"""The page's first request of one run is answered only after `window.release()`; 500 ms later `window.released` is true."""


def _text(chromium: Browser, name: str) -> str:
    return str(chromium.ask(f"document.getElementById({json.dumps(name)}).textContent"))


@pytest.mark.medium
def test_record_of_a_round_appears_without_reload(chromium, tmp_path):
    with filled(tmp_path, rounds=3) as registry, served(tmp_path) as console:
        _open(chromium, console, 3)
        registry.rounds.finish(registry.run("last").id, record(4, user_accuracy=0.77))
        chromium.wait_for(f"{_ROUNDS} === 4")
        assert _text(chromium, "t-ua").startswith("0.770")
        assert chromium.ask("document.querySelector('#rounds-table tbody tr th').textContent") == "4"
        assert "round 4" in chromium.ask("document.querySelector('#c-ua svg').getAttribute('aria-label')")
        chromium.wait_for("document.getElementById('spoken').textContent.includes('Round 4 aggregated')")
        assert chromium.ask("document.getElementById('gain-tile').hidden")


def test_evaluate_round_is_shown_as_such_and_apart_from_the_training_rounds(chromium, tmp_path):
    with filled(tmp_path, rounds=3) as registry, served(tmp_path) as console:
        registry.rounds.finish(registry.run("last").id, record(4, user_accuracy=0.77))
        registry.rounds.finish(registry.run("last").id, record(5, outcome="evaluated", user_accuracy=0.55))
        _open(chromium, console, 5)
        assert chromium.ask("document.querySelector('#rounds-table tbody td').textContent") == "evaluated"
        assert _text(chromium, "t-ua").startswith("0.770")
        assert "0.770 in round 4" in chromium.ask("document.querySelector('#c-ua svg').getAttribute('aria-label')")


def test_share_of_devices_that_gain_is_a_tile_once_a_round_has_measured_it(chromium, tmp_path):
    gains = {"measured": 4, "user_accuracy": 0.9, "gaining": 0.75, "losing": 0.25, "gain": 0.021}
    with filled(tmp_path, rounds=3) as registry, served(tmp_path) as console:
        registry.rounds.finish(registry.run("last").id, record(4, independent=gains))
        _open(chromium, console, 4)
        assert _text(chromium, "t-gaining") == "75 %"
        assert _text(chromium, "t-gain") == "+2.1 points over alone, round 4"
        assert not chromium.ask("document.getElementById('gain-tile').hidden")


def test_open_round_shows_each_device_with_its_state_in_words(chromium, tmp_path):
    with filled(tmp_path) as registry, served(tmp_path) as console:
        _open(chromium, console, 3)
        run = registry.run("last").id
        console.publish(collecting(*participants(18), run=run))
        chromium.wait_for("document.querySelectorAll('#chips li').length === 18")
        shown = chromium.ask("[...document.querySelectorAll('#chips span')].map(one => one.textContent)")
        assert all(any(text.startswith(words) for text in shown) for words in STATE_WORDS.values())
        assert _text(chromium, "open-title") == "Round 3" and _text(chromium, "link") == "live"
        assert "trains 2" in chromium.ask("document.getElementById('state-bar').getAttribute('aria-label')")
        assert chromium.ask("document.querySelector('#steps [aria-current]').textContent") == "Train"


@pytest.mark.parametrize("ended", [False, True], ids=["run at work", "no run at work"])
def test_silence_of_the_broker_during_a_run_is_explained_on_the_page(chromium, tmp_path, ended):
    """Such as under access rules that do not let this user read the status: the broker takes the subscription all the same."""
    with filled(tmp_path, status="max_rounds" if ended else "running"), served(tmp_path) as console:
        _open(chromium, console, 3)
        console.feed.follow(StatusFollower(FLEET, "mqtt://broker", time.monotonic() - PATIENCE_S))
        console.feed.events.put(Received("another/topic", b"", retained=False))
        chromium.wait_for("document.getElementById('notice').textContent.includes('does not let this user read')")
        assert chromium.ask("document.getElementById('notice').hidden") is ended
        console.publish(collecting(*participants(9)))
        chromium.wait_for("document.getElementById('link').textContent === 'live'")
        assert chromium.ask("document.getElementById('notice').hidden")


def test_operator_logs_in_holds_a_device_and_releases_it(chromium, tmp_path):
    with filled(tmp_path) as registry, served(tmp_path, actions=True) as console:
        _open(chromium, console, 3)
        chromium.ask("document.getElementById('login').click()")
        chromium.ask(f"document.getElementById('token').value = {json.dumps(TOKEN)}")
        chromium.ask("document.querySelector('#login-form [type=submit]').click()")
        chromium.wait_for("!document.getElementById('logout').hidden")
        chromium.ask("document.querySelector('#fleet-table button.open').click()")
        chromium.wait_for("document.querySelectorAll('tr.detail button').length === 2")
        chromium.ask("document.querySelector('tr.detail button').click()")
        chromium.ask("document.getElementById('ask-reason').value = 'sends nonsense'")
        chromium.ask("document.getElementById('ask-ok').click()")
        chromium.wait_for("document.querySelector('#fleet-table tbody tr').textContent.includes('sends nonsense')")
        assert registry.holds.held(FLEET) == {"pi-1": "quarantined"}
        chromium.wait_for("document.querySelector('tr.detail button').textContent === 'Release'")
        chromium.wait_for("!document.getElementById('ask-dialog').open")  # the table may precede the answer
        chromium.ask("document.querySelector('tr.detail button').click()")
        chromium.ask("document.getElementById('ask-ok').click()")
        chromium.wait_for("!document.querySelector('#fleet-table tbody tr').textContent.includes('quarantined')")
        assert registry.holds.held(FLEET) == {}


def test_operator_asks_a_run_to_stop(chromium, tmp_path):
    lock = FileLock(fleet_lock_file(tmp_path, FLEET), "held")
    with filled(tmp_path) as registry, served(tmp_path, actions=True) as console, lock:
        run = registry.run("last").id
        (tmp_path / "runs" / run).mkdir(parents=True, exist_ok=True)
        _open(chromium, console, 3)
        chromium.ask("document.getElementById('login').click()")
        chromium.ask(f"document.getElementById('token').value = {json.dumps(TOKEN)}")
        chromium.ask("document.querySelector('#login-form [type=submit]').click()")
        chromium.wait_for("!document.getElementById('stop').hidden")
        chromium.ask("document.getElementById('stop').click()")
        chromium.ask("document.getElementById('ask-ok').click()")
        chromium.wait_for("document.getElementById('notice').textContent.includes('stops after its open round')")
        assert (tmp_path / "runs" / run / "stop-after-round").exists()


@pytest.mark.medium
def test_operator_begins_a_run_of_a_named_file_and_reads_its_error(chromium, tmp_path, monkeypatch):
    monkeypatch.setattr("fedpatch.coordinator.console.run_starter.START_S", 120.0)
    (file := tmp_path / "nightly.toml").write_text("devices = 1\n")
    with filled(tmp_path), served(tmp_path, actions=True, begin=(file,)) as console:
        file.unlink()
        _open(chromium, console, 3)
        assert chromium.ask("document.getElementById('begin').hidden")
        chromium.ask("document.getElementById('login').click()")
        chromium.ask(f"document.getElementById('token').value = {json.dumps(TOKEN)}")
        chromium.ask("document.querySelector('#login-form [type=submit]').click()")
        chromium.wait_for("!document.getElementById('begin').hidden")
        chromium.ask("document.getElementById('begin-run').click()")
        assert _text(chromium, "ask-title") == "Begin nightly"
        chromium.ask("document.getElementById('ask-ok').click()")
        chromium.wait_for("document.getElementById('ask-error').textContent.includes('nightly has not begun')")
    assert all("400" in one for one in chromium.complaints)
    chromium.complaints.clear()


def test_wrong_token_is_named_in_the_dialog(chromium, tmp_path):
    with filled(tmp_path), served(tmp_path, actions=True) as console:
        _open(chromium, console, 3)
        chromium.ask("document.getElementById('login').click()")
        chromium.ask("document.getElementById('token').value = 'wrong'")
        chromium.ask("document.querySelector('#login-form [type=submit]').click()")
        chromium.wait_for("document.getElementById('login-error').textContent === 'wrong token'")
    assert all("403" in one for one in chromium.complaints)
    chromium.complaints.clear()


def test_content_security_policy_stops_inline_scripts_markup_and_other_hosts(chromium, tmp_path):
    with filled(tmp_path), served(tmp_path) as console:
        _open(chromium, console, 3)
        chromium.complaints.clear()
        chromium.ask(
            "for (const act of [() => document.body.insertAdjacentHTML('beforeend', '<b>x</b>'),"
            " () => { const s = document.createElement('script'); s.append('window.hacked = 1'); document.body.append(s); },"
            " () => { const s = document.createElement('img'); s.src = 'http://127.0.0.2:9/x.png'; document.body.append(s); },"
            " () => { const s = document.createElement('p'); s.setAttribute('style', 'color: red'); document.body.append(s); },"
            " () => { fetch('http://127.0.0.2:9/').catch(() => 0); }]) { try { act(); } catch { } }"
        )
        blocked = [one for one in chromium.requests if "127.0.0.2" in one]
        while sum('"blockedReason": "csp"' in one for one in chromium.complaints) < len(blocked):
            chromium.ask("0")
        assert chromium.ask("window.hacked") is None
        assert chromium.ask("document.querySelector('body > b')") is None
    assert len([one for one in chromium.complaints if "Content Security Policy" in one or "TrustedHTML" in one]) >= 3
    chromium.complaints.clear()
    chromium.requests.clear()


def test_hostile_names_are_shown_as_text(chromium, tmp_path):
    with filled(tmp_path) as registry, served(tmp_path, actions=True) as console:
        run = new_run(registry, 1.79e9, task=_MARKUP, settings={"fleet": FLEET, _MARKUP: _MARKUP})
        registry.holds.put(FLEET, "pi-1", "drained", _MARKUP, 1.0)
        registry.rounds.finish(run.id, record(1, decline_reasons={_MARKUP: 1}))
        _open(chromium, console, 1)
        chromium.wait_for(f"document.getElementById('fleet-table').textContent.includes({json.dumps(_MARKUP)})")
        assert chromium.ask("document.querySelectorAll('td img, th img, li img').length") == 0
        assert _MARKUP in _text(chromium, "run-terms")


@contextmanager
def two_runs(chromium: Browser, directory: Path) -> Iterator[None]:
    """Open a console in the browser that lists two runs with different settings."""
    with filled(directory) as registry, served(directory) as console:
        other = new_run(registry, 1.7e9, private="affine", settings={"fleet": FLEET, "rounds": 7})
        registry.rounds.finish(other.id, record(1))
        _open(chromium, console, 3)
        chromium.wait_for("document.querySelectorAll('#runs-table input').length === 2")
        yield


def test_two_runs_are_shown_side_by_side_with_settings_that_differ(chromium, tmp_path):
    with two_runs(chromium, tmp_path):
        chromium.ask("document.querySelectorAll('#runs-table input').forEach(box => box.click())")
        chromium.wait_for("document.querySelectorAll('#compare-table tbody tr').length > 0")
        names = chromium.ask("[...document.querySelectorAll('#compare-table tbody th')].map(one => one.textContent)")
        assert {"private", "rounds"} <= set(names) and "task" not in names and "password" not in names
        assert chromium.ask("document.querySelectorAll('#c-compare .line').length") >= 2
        chromium.wait_for("document.querySelectorAll('#settings-table tbody tr').length > 3")


def test_a_late_answer_for_an_earlier_choice_of_runs_is_not_drawn(chromium, tmp_path):
    with two_runs(chromium, tmp_path):
        chromium.ask(_HOLD_FIRST_RUN)
        # The settings of the newest run are loaded already, so the older run is chosen first.
        chromium.ask("[...document.querySelectorAll('#runs-table input')].reverse().forEach(box => box.click())")
        chromium.wait_for("document.querySelectorAll('#compare-table tbody tr').length > 0")
        chromium.ask("window.release()")
        chromium.wait_for("window.released === true")
        assert chromium.ask("document.querySelectorAll('#compare-table thead th').length") == 3


@pytest.mark.medium
@pytest.mark.parametrize("width", [390, *(pytest.param(one, marks=pytest.mark.slow) for one in (320, 700, 1280))])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_fits_every_width_in_both_colour_schemes(chromium, tmp_path, width, dark):
    with filled(tmp_path, rounds=15, devices=12) as registry, served(tmp_path) as console:
        _open(chromium, console, 12, width=width, dark=dark)
        console.publish(collecting(*participants(18), run=registry.run("last").id))
        chromium.wait_for("document.querySelectorAll('#chips li').length === 18")
        scroll, client = chromium.ask(_WIDTHS)
        assert scroll <= client
        ground = chromium.ask("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(17, 22, 27)" if dark else "rgb(244, 246, 248)")


def test_page_has_landmarks_names_and_table_headers(chromium, tmp_path):
    with filled(tmp_path, rounds=15, devices=3), served(tmp_path) as console:
        _open(chromium, console, 12)
        nodes = chromium.accessible()
        roles = {role for role, _ in nodes}
        assert {"banner", "main", "navigation", "contentinfo", "table", "columnheader", "rowheader"} <= roles
        named = [
            (role, name) for role, name in nodes if role in ("button", "image", "img", "table", "region", "heading")
        ]
        assert all(name for role, name in named), named
        assert chromium.ask("document.getElementById('spoken').getAttribute('aria-live')") == "polite"
        assert (
            chromium.ask('document.querySelectorAll(\'[tabindex]:not([tabindex="0"]):not([tabindex="-1"])\').length')
            == 0
        )


def test_keys_read_a_chart_round_by_round(chromium, tmp_path):
    with filled(tmp_path, rounds=5), served(tmp_path) as console:
        _open(chromium, console, 5)
        chromium.ask(
            "(() => { const svg = document.querySelector('#c-ua svg'); svg.focus(); for (const key of ['End', 'ArrowLeft'])"
            " svg.dispatchEvent(new KeyboardEvent('keydown', {key})); })()"
        )
        assert chromium.ask("document.querySelector('#c-ua .readout').textContent").startswith("Round 4: mean")


_OVER_TILES = """[...document.querySelectorAll('.tiles div:not([hidden])')].filter(tile => {
  const edge = tile.getBoundingClientRect();
  return [...tile.querySelectorAll('*')].some(one => one.getBoundingClientRect().right > edge.right) ||
    tile.scrollWidth > tile.clientWidth;
}).map(tile => tile.textContent)"""
"""Texts of tiles that extend beyond their border."""


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 700, 1000, 1400])
def test_tiles_hold_their_text_and_notes_of_rounds_are_in_sight_at_every_width(chromium, tmp_path, width):
    gains = {"measured": 4, "user_accuracy": 0.9, "gaining": 0.75, "losing": 0.25, "gain": -0.123}
    with filled(tmp_path, rounds=3) as registry, served(tmp_path) as console:
        registry.rounds.finish(registry.run("last").id, record(4, independent=gains))
        _open(chromium, console, 4, width=width)
        chromium.wait_for("!document.getElementById('gain-tile').hidden")
        if path := os.environ.get("FEDPATCH_SHOTS"):
            Path(path, f"console-{width}.png").write_bytes(chromium.picture())
            chromium.ask("document.getElementById('rounds-table').scrollIntoView()")
            Path(path, f"console-rounds-{width}.png").write_bytes(chromium.picture())
        assert chromium.ask(_OVER_TILES) == []
        note = "document.querySelector('#rounds-table td.why').getBoundingClientRect()"
        assert chromium.ask(f"{note}.left") >= 0 and chromium.ask(f"{note}.right") <= width
