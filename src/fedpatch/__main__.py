"""`python -m fedpatch` is `fedpatch`."""

from fedpatch.programs import fedpatch

fedpatch()
