"""`python -m fedpatch` is `fedpatch`."""

from fedpatch.cli import main

main()
