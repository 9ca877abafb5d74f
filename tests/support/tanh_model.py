"""The model of tasks whose results are compared number by number: it does not magnify rounding errors."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def tanh_model(features: int, hidden: int, classes: int) -> nn.Module:
    """FC -> tanh -> BN -> FC -> tanh -> BN -> FC.

    Tanh, since batch norm magnifies the rounding errors of a ReLU that is zero for a whole batch 300 times. Tanh is before
    batch norm, since the gradient of a bias right before batch norm is only rounding errors, which Adam magnifies.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            fc1=nn.Linear(features, hidden),
            tanh1=nn.Tanh(),
            bn1=nn.BatchNorm1d(hidden),
            fc2=nn.Linear(hidden, hidden),
            tanh2=nn.Tanh(),
            bn2=nn.BatchNorm1d(hidden),
            fc3=nn.Linear(hidden, classes),
        )
    )
