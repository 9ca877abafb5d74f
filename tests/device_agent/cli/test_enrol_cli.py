"""`fedpatch-agent enrol`: its installation directory and its output."""

from __future__ import annotations

import json
from pathlib import Path

from fedpatch.shared.config.enrolment_bundle import encode_bundle
from tests.device_agent.cli.test_enrolment import bundle_of
from tests.support.programs import Program


def test_the_settings_name_the_state_directory_and_doing_it_again_changes_nothing(
    agent: Program, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    state_dir = tmp_path / "state of its own"
    Path("agent.toml").write_text(f'data = "shard:0/2"\nstate_dir = "{state_dir}"\n')
    Path("pi-1.bundle").write_bytes(encode_bundle(bundle_of(tmp_path)))
    Path("pi-1.bundle").chmod(0o600)
    first, again = agent("enrol", "pi-1.bundle"), agent("enrol", "pi-1.bundle")
    assert (first.code, first.err, again.code, again.err) == (0, "", 0, "")
    assert first.out.splitlines()[0] == "this device is pi-1 of fleet kitchen"
    assert f"wrote {state_dir}/identity/client.pem" in first.out
    assert first.out.endswith("then: fedpatch-agent doctor --config agent.toml\n")
    assert again.out.splitlines()[0] == "this device is pi-1 of fleet kitchen; nothing has changed"
    Path("pi-1.bundle").chmod(0o644)
    done = agent("enrol", "pi-1.bundle", "--json")
    assert json.loads(done.out)["device"] == "pi-1" and "pi-1.bundle is open to other users" in done.err
