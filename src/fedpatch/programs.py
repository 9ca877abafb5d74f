"""Entry points of the programs. Ctrl-C while one of them imports its modules ends it without a traceback, as later."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

_INTERRUPTED = 130  # as shared.app.signals.EXIT_INTERRUPTED, which is not imported yet


def fedpatch() -> NoReturn:
    """Run `fedpatch`; ends the process."""
    _run("fedpatch.cli")


def fedpatch_agent() -> NoReturn:
    """Run `fedpatch-agent`; ends the process."""
    _run("fedpatch.device_agent.cli.main")


def fedpatch_relay() -> NoReturn:
    """Run `fedpatch-relay`; ends the process."""
    _run("fedpatch.relay.cli")


def _run(module: str) -> NoReturn:
    """Import a module and run its `main`."""
    try:
        main = import_module(module).main
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)  # after sys.exit Python would kill itself if the signal came within exec()
    main()
    sys.exit(0)
