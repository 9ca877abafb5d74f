"""Simulations of whole fleets in one process: studies, comparisons of policies and methods, and round policies."""

if __name__ != "fedpatch.simulator":
    raise ImportError(
        "import fedpatch.simulator, not simulator: the packages of fedpatch are parts of the package fedpatch",
        name="simulator",
    )
