"""`python -m fedpatch.relay` is `fedpatch-relay`."""

from fedpatch.programs import fedpatch_relay

fedpatch_relay()
