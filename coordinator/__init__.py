"""The coordinator: selects devices, runs the rounds, aggregates updates and saves the global model."""

if __name__ != "fedpatch.coordinator":
    raise ImportError(
        "import fedpatch.coordinator, not coordinator: the packages of fedpatch are parts of the package fedpatch",
        name="coordinator",
    )
