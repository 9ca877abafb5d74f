"""`fedpatch.metrics`: metrics of a model's outputs (fedpatch.shared.tasks.metrics)."""

from fedpatch.shared.tasks.metrics import accuracy, macro_f1, mae, rmse

__all__ = ["accuracy", "macro_f1", "mae", "rmse"]
