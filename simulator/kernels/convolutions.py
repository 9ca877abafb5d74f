"""Convolutions as matrix products: for the stacked models of many clients, which torch has grouped convolutions for.

A grouped convolution with other weights for each client takes cuDNN two to three times as long as the products on an H200,
forward and backward (20 images a client, 200 clients, float32).
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.nn import functional


def convolve(module: nn.Conv2d, x: Tensor) -> Tensor:
    """Return the output of a convolution without groups, padded with zeros, as one matrix product.

    Args:
        module: The convolution.
        x: Images, (examples, channels, height, width).

    Returns:
        The same as `module(x)`, but for rounding: (examples, output channels, output height, output width).
    """
    assert isinstance(module.padding, tuple)  # not "same" or "valid": see use_products
    (top, left), (rows, columns) = module.padding, module.kernel_size
    (down, right), (wide_y, wide_x) = module.stride, module.dilation
    if top or left:
        x = functional.pad(x, (left, left, top, top))
    windows = x.transpose(0, 1).unfold(2, (rows - 1) * wide_y + 1, down).unfold(3, (columns - 1) * wide_x + 1, right)
    windows = windows[..., ::wide_y, ::wide_x]  # (channels, examples, output height, output width, rows, columns)
    outputs, shape = module.out_channels, windows.shape[1:4]
    inputs = windows.permute(0, 4, 5, 1, 2, 3).reshape(module.in_channels * rows * columns, shape.numel())
    product = module.weight.reshape(outputs, -1) @ inputs
    if module.bias is not None:
        product = product + module.bias.unsqueeze(-1)
    return product.view(outputs, *shape).transpose(0, 1)


def use_products(model: nn.Module) -> nn.Module:
    """Let the 2D convolutions of `model` compute by `convolve`, where they can; return the model."""
    for part in model.modules():
        # A class of its own may compute something else.
        if (
            type(part) is nn.Conv2d
            and part.groups == 1
            and part.padding_mode == "zeros"
            and isinstance(part.padding, tuple)
        ):
            part.forward = partial(convolve, part)  # type: ignore[method-assign]
    return model
