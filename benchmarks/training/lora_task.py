"""Task `lora-digits`: a transformer of 1.0 million values that never change, with trained LoRA matrices of rank 8 beside it.

LoRA: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1, on the projections of queries and
values. The base, with its last layer, is random (Hoffer et al. 2018, "Fix your classifier"): traffic does not depend on its
values. They are uniform draws scaled by powers of two, the same on every processor.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedpatch import Task
from fedpatch.shared.tasks.bundled.digits import TASK as DIGITS

WIDTH, HEADS, LAYERS, RANK, CLASSES = 128, 4, 5, 8, 10
PATCHES, PATCH = 16, 4
_BASE_SEED = 8
_SCALE = 2.0


class Lora(nn.Module):
    """A frozen linear layer plus `lora_B @ lora_A`, which is zero at the start."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False)
        self.lora_A = nn.Parameter(torch.empty(rank, width).uniform_(-(width**-0.5), width**-0.5))
        self.lora_B = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        outputs: Tensor = self.base(x) + _SCALE * (x @ self.lora_A.T @ self.lora_B.T)
        return outputs


class Block(nn.Module):
    """Attention and two dense layers, each after a layer norm and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.value = Lora(WIDTH, RANK), Lora(WIDTH, RANK)
        self.key, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (examples, patches, WIDTH) to the same shape."""
        normed = self.norm1(x)
        query, key, value = (_heads(part(normed)) for part in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5, dim=-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        outputs: Tensor = x + self.narrow(torch.relu(self.wide(self.norm2(x))))
        return outputs


class Transformer(nn.Module):
    """Sixteen patches of 2 x 2 pixels, five blocks, a mean over the patches, a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.place = nn.Parameter(torch.empty(PATCHES, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images of shape (n, 64)."""
        patches = images.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, PATCHES, PATCH)
        x = self.embed(patches) + self.place
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.last(self.norm(x).mean(dim=1))
        return logits


def build_model() -> nn.Module:
    """Return the transformer; only the LoRA matrices learn."""
    model = Transformer()
    rng = np.random.default_rng(_BASE_SEED)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                continue
            value.requires_grad = False
            if ".norm" not in f".{name}":
                drawn = rng.random(tuple(value.shape), dtype=np.float32) - np.float32(0.5)
                value.copy_(torch.from_numpy(drawn * _power_of_two(value.shape[-1])))
    return model


def _power_of_two(width: int) -> np.float32:
    """Return the power of two nearest, in logarithm, to twice the spread of torch's initial values."""
    return np.float32(2.0 ** round(1 + np.log2(width**-0.5)))


def _heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], PATCHES, HEADS, WIDTH // HEADS).transpose(1, 2)


TASK = Task(
    name="lora-digits",
    description="digits by a frozen transformer of 1 million values with LoRA of rank 8",
    build_model=build_model,
    load_data=DIGITS.load_data,
    load_many=DIGITS.load_many,
    loss=DIGITS.loss,
    metric=DIGITS.metric,
    batch_size=20,
    learning_rates={"fedavg": 0.1, "fedadam": 0.1, "fedavg-adam": 0.003},
    server_learning_rates={"fedadam": 0.01},
    demo_data=DIGITS.demo_data,
    simulation_data=DIGITS.simulation_data,
    class_names=DIGITS.class_names,
    input_shape=DIGITS.input_shape,
    frozen=True,
)
