"""The device agent: decides by its owner's preferences, trains on local data and keeps the private patches."""

if __name__ != "fedpatch.device_agent":
    raise ImportError(
        "import fedpatch.device_agent, not device_agent: the packages of fedpatch are parts of the package fedpatch",
        name="device_agent",
    )
