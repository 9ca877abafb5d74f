"""Code that coordinator and device agent share: wire protocol, tensors, patch policy, tasks, settings, MQTT."""

if __name__ != "fedpatch.shared":
    raise ImportError(
        "import fedpatch.shared, not shared: the packages of fedpatch are parts of the package fedpatch", name="shared"
    )

__version__ = "0.1.0"
