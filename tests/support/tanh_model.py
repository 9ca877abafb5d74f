"""The model of tasks whose results are compared number by number: harmless to rounding errors."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def tanh_model(features: int, hidden: int, classes: int) -> nn.Module:
    """FC -> tanh -> BN -> FC -> tanh -> BN -> FC.

    Tanh, since of a ReLU that is zero for a whole batch, batch norm magnifies the rounding errors 300 times; and before
    batch norm, since of a bias right before it the gradient is nothing but rounding errors, which Adam magnifies.
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
