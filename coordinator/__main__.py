"""`python -m coordinator` is `fedpatch`."""

from coordinator.cli import main

main()
