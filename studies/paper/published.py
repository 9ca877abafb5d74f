"""The numbers of the paper: Tables 2 and 3 as printed, and the published learning rates of their strategies.

A row of a table is four groups of four: what is private, as in PRIVATE, and within it the scenarios, as in SCENARIOS of
simulator.spec.published_rates.
X: the target was not reached within MAX_ROUNDS rounds.
"""

from __future__ import annotations

from collections.abc import Mapping

X = None

PRIVATE = ("none", "all", "stats", "affine")

TARGET_UA = {"mnist": 0.97, "cifar10": 0.65}  # section 4.2
MAX_ROUNDS = 500
BATCH_SIZE = 20
NOISY_FRACTION = 0.2  # of all clients, in Table 3

Row = tuple[int | None, ...]

# fmt: off
TABLE_2: Mapping[str, Mapping[str, Row]] = {
    "mnist": {
        #                none                all                stats               affine
        "fedavg":      (99, 102, 107, 110,  85, 58, 101, 68,  X, X, X, X,          29, 21, 34, 26),
        "fedadam":     (85, 69, 88, 65,     56, 37, 75, 77,   109, 90, 194, 262,   31, 25, 31, 27),
        "fedavg-adam": (44, 49, 40, 50,     17, 41, 19, 32,   131, 151, 170, 198,  9, 9, 10, 9),
    },
    "cifar10": {
        "fedavg":      (139, 138, 171, 164, 49, 33, 55, 36,   231, 280, 258, 266,  37, 24, 45, 30),
        "fedadam":     (105, 90, 83, 80,    21, 14, 22, 16,   67, 45, 48, 38,      24, 14, 25, 16),
        "fedavg-adam": (57, 43, 36, 31,     11, 9, 14, 8,     82, 79, 62, 63,      10, 7, 11, 8),
    },
}
TABLE_3: Mapping[str, Mapping[str, Row]] = {
    "mnist": {
        #                none                all                 stats                  affine
        "fedavg":      (276, X, 290, X,     115, 76, 144, 144,  85, 58, 102, 68,       50, 36, 65, 48),
        "fedadam":     (X, X, X, X,         76, 47, 110, 89,    56, 37, 75, 77,        43, 33, 46, 53),
        "fedavg-adam": (133, 260, 191, X,   20, 16, 24, 27,     17, 41, 19, 32,        12, 8, 15, 40),
    },
    "cifar10": {
        "fedavg":      (148, 208, 202, 250, 47, 32, 52, 35,     239, 186, 260, 88,     36, 24, 43, 28),
        "fedadam":     (159, 91, 92, 93,    21, 14, 21, 15,     74, 49, 51, 42,        34, 16, 21, 14),
        "fedavg-adam": (193, X, X, X,       14, 10, 16, 9,      103, 111, 67, 74,      12, 8, 13, 9),
    },
}
# fmt: on

# In Table 3, MNIST, "statistics private" repeats "all private" of Table 2 except for one cell: a copying error. These cells
# cannot be compared.
MISPRINTED = ("table3", "mnist", "stats")

# Fig. 5: user accuracy of personalised algorithms, round by round (section 4.4); what is private, by algorithm.
FIG_5 = (("fedavg", "none"), ("fedavg", "affine"), ("per-fedavg", "none"), ("pfedme", "none"))
FIG_5_ROUNDS = 200

# The client optimizer's rate, by data set. FedAdam's published rate, an example for MNIST, is FedAvg's rate for MNIST. With
# this rate, training on CIFAR-10 diverges; so FedAdam has FedAvg's rate there too.
CLIENT_RATES = {
    ("mnist", "fedavg"): 0.3,
    ("cifar10", "fedavg"): 0.1,
    ("mnist", "fedadam"): 0.3,
    ("cifar10", "fedadam"): 0.1,
    ("mnist", "fedavg-adam"): 0.003,
    ("cifar10", "fedavg-adam"): 0.003,
}
SERVER_RATE = 0.01  # FedAdam's
