"""`python -m device_agent` is `fedpatch-agent`."""

import sys
from pathlib import Path

# Python looks into the folder that it is called in first, which may have a `shared` that is none of ours.
if not sys.flags.safe_path and Path(sys.path[0]) != Path(__file__).resolve().parents[1]:
    del sys.path[0]

from device_agent.cli import main

main()
