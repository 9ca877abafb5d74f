"""`python -m device_agent` is `fedpatch-agent`."""

from device_agent.cli import main

main()
