"""`python -m fedpatch.device_agent` is `fedpatch-agent`."""

from fedpatch.programs import fedpatch_agent

fedpatch_agent()
