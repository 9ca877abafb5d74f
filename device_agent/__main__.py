"""`python -m fedpatch.device_agent` is `fedpatch-agent`."""

from fedpatch.device_agent.cli.main import main

main()
