"""Task `voice-commands`: the intent of a short sentence in a home; generated, seeded, without files.

Homes say the same in words of their own: each prefers some verbs, calls its appliances by nicknames that mean another
appliance next door, and asks for some intents more than for others. A data spec is `home:NUMBER` or `home:NUMBER,seed=SEED`;
the seed draws other homes.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from fedpatch import DeviceData, Task, UsageError, metrics, splits

APPLIANCES = {
    "lamp": ("lamp", "light", "lights", "bulb"),
    "heating": ("heating", "radiator", "heater", "thermostat"),
    "music": ("music", "radio", "speaker", "song"),
    "blinds": ("blinds", "shutter", "curtains", "shades"),
}
VERBS = {"on": ("on", "start", "up", "open", "more"), "off": ("off", "stop", "down", "close", "less")}
NICKNAMES = ("sunny", "buddy", "rosie", "oscar", "coco", "bear", "lucky", "ziggy")
FILLERS = ("please", "the", "now", "hey", "in", "kitchen", "bedroom", "could", "you", "a", "bit", "hall")
INTENTS = tuple(f"{appliance} {verb}" for appliance in APPLIANCES for verb in VERBS)
WORDS = ("", *(word for group in (*APPLIANCES.values(), *VERBS.values(), NICKNAMES, FILLERS) for word in group))
LENGTH, SENTENCES = 8, 150
_NICKNAMED, _MISHEARD = 0.5, 0.1


class CommandModel(nn.Module):
    """Mean of word vectors, layer norm, one hidden layer, and the head `fc2`; 2,888 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 32, padding_idx=0)
        self.norm = nn.LayerNorm(32)
        self.fc1 = nn.Linear(32, 32)
        self.fc2 = nn.Linear(32, len(INTENTS))

    def forward(self, sentences: Tensor) -> Tensor:
        """Return logits, shape (n, 8), of sentences of word numbers, shape (n, LENGTH); 0 is no word."""
        meaning = self.words(sentences).sum(1) / sentences.ne(0).sum(1, keepdim=True).clamp(min=1)
        logits: Tensor = self.fc2(self.fc1(self.norm(meaning)).relu())
        return logits


def say_sentences(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sentences as word numbers, shape (SENTENCES, LENGTH), and their intents, shape (SENTENCES,).

    Args:
        number: Number of the home.
        seed: Seed of all homes.
    """
    rng = np.random.default_rng([seed, number])
    intents = rng.choice(len(INTENTS), SENTENCES, p=rng.dirichlet(np.full(len(INTENTS), 0.7)))
    verbs = {verb: rng.dirichlet(np.full(len(words), 0.3)) for verb, words in VERBS.items()}
    nicknames = dict(zip(APPLIANCES, rng.permutation(NICKNAMES), strict=False))
    numbers = {word: place for place, word in enumerate(WORDS)}
    sentences = np.zeros((SENTENCES, LENGTH), np.int64)
    for row, intent in enumerate(intents):
        appliance, verb = INTENTS[intent].split()
        name = nicknames[appliance] if rng.random() < _NICKNAMED else rng.choice(APPLIANCES[appliance])
        said = [rng.choice(VERBS[verb], p=verbs[verb]), name, *rng.choice(FILLERS, rng.integers(1, LENGTH - 2))]
        heard = [word if rng.random() >= _MISHEARD else rng.choice(WORDS[1:]) for word in said]
        sentences[row, : len(heard)] = [numbers[str(word)] for word in rng.permutation(heard)]
    return sentences, intents


def load_data(spec: str, root: Path) -> DeviceData:
    """Return 150 sentences of a home, a fifth of them for testing. `root` is not used."""
    match = re.fullmatch(r"home:([0-9]{1,6})(?:,seed=([0-9]{1,9}))?", spec)
    if match is None:
        raise UsageError(f"voice-commands: data spec {spec!r} must be home:NUMBER, for example home:3 or home:3,seed=1")
    sentences, intents = say_sentences(int(match[1]), int(match[2] or 0))
    test = splits.stratified_split(intents, seed=int(match[1]))
    return DeviceData(sentences[~test], intents[~test], sentences[test], intents[test])


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of a minibatch."""
    return functional.cross_entropy(outputs, targets)


TASK = Task(
    name="voice-commands",
    description="intent of a sentence, in the words of each home (generated)",
    build_model=CommandModel,
    load_data=load_data,
    loss=loss,
    metric=metrics.accuracy,
    batch_size=20,
    learning_rates={"fedavg": 0.3, "fedavg-adam": 0.01},
    demo_data="home:{index}",
    simulation_data="home:{index},seed={seed}",
    class_names=INTENTS,
    input_shape=(LENGTH,),
    input_dtype="int64",
    head=("fc2.*",),
)
