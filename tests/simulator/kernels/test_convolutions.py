"""A convolution computed as a matrix product gives the outputs and gradients of torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedpatch.simulator.kernels.convolutions import convolve, use_products

HEIGHT, WIDTH, CHANNELS = 6, 7, 3


def pairs(lowest: int, highest: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(lowest, highest), st.integers(lowest, highest))


@st.composite
def convolutions(draw: st.DrawFn) -> nn.Conv2d:
    """Any convolution that fits an image of HEIGHT x WIDTH."""
    return nn.Conv2d(
        CHANNELS,
        draw(st.integers(1, 4)),
        draw(pairs(1, 3)),
        stride=draw(pairs(1, 3)),
        padding=draw(pairs(0, 2)),
        bias=draw(st.booleans()),
        dtype=torch.float64,
    )


def gradients(module: nn.Module, outputs: Tensor, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((outputs * outputs.cos()).sum(), [x, *module.parameters()]))


@given(convolutions(), st.integers(1, 3), st.integers(0, 2**31))
def test_a_product_gives_the_outputs_and_gradients_of_the_convolution(module, examples, seed):
    x = torch.randn(
        examples, CHANNELS, HEIGHT, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    x.requires_grad_()
    expected, outputs = module(x), convolve(module, x)
    torch.testing.assert_close(outputs, expected)
    assert outputs.is_contiguous()
    torch.testing.assert_close(gradients(module, outputs, x), gradients(module, expected, x))


def test_products_of_many_clients_are_those_of_each():
    module = use_products(nn.Conv2d(CHANNELS, 4, 3, stride=2, padding=1))
    x = torch.randn(5, 2, CHANNELS, HEIGHT, WIDTH)
    values = {name: torch.randn(5, *value.shape) for name, value in module.named_parameters()}
    outputs = vmap(lambda one, images: functional_call(module, one, (images,)))(values, x)
    for client, one in enumerate(outputs):
        own = {name: value[client] for name, value in values.items()}
        torch.testing.assert_close(
            one, functional_call(nn.Conv2d(CHANNELS, 4, 3, stride=2, padding=1), own, (x[client],))
        )


def test_an_image_without_a_batch_is_convolved():
    module, image = nn.Conv2d(CHANNELS, 4, 3), torch.randn(CHANNELS, HEIGHT, WIDTH)
    torch.testing.assert_close(convolve(module, image), module(image))


class _OwnConvolution(nn.Conv2d):
    """A subclass, which may compute another function."""


@pytest.mark.parametrize(
    "module",
    [
        _OwnConvolution(2, 4, 3),
        nn.Conv2d(2, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
        nn.ConvTranspose2d(2, 4, 3),
    ],
    ids=["class of its own", "dilation", "groups", "padding by name", "circular padding", "transposed"],
)
def test_other_convolutions_keep_their_own_way(module):
    assert "forward" not in vars(use_products(module))
