"""`python -m fedpatch.relay` is `fedpatch-relay`."""

from fedpatch.relay.cli import main

main()
