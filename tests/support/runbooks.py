"""The commands of docs/how-to/runbooks.md."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

RUNBOOKS = (ROOT / "docs" / "how-to" / "runbooks.md").read_text("utf-8")
COMMANDS = sorted(set(re.findall(r"`((?:fedpatch|fedpatch-agent) [^`]+)`", RUNBOOKS)))
COMMANDS_OF_HOSTS = sorted(set(re.findall(r"`((?:sudo|systemctl|journalctl|promtool) [^`]+)`", RUNBOOKS)))
WITHOUT_SERVICE = {"fedpatch resume last", "fedpatch metrics last --serve 127.0.0.1:9464"}
"""Work of a service, or beside a service: these commands are named for hosts without one."""
ENDLESS = {"fedpatch watch"}
