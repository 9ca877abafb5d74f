"""The coordinator's files: the registry, journals, checkpoints and updates, their checks, and the model deltas of a run.

Nothing here uses the network.
"""

from importlib.util import find_spec

from fedpatch.shared.errors import UsageError

if find_spec("sqlalchemy") is None:
    raise UsageError(
        "the registry needs the package sqlalchemy, which is not installed; pip install 'fedpatch[coordinator]'"
    )
