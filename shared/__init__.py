"""What coordinator and device must agree on: the wire, the tensors, the patch policy, the task."""

__version__ = "0.1.0"
