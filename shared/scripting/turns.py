"""Turns of threads of one process at the random state of torch, which they share.

Code that seeds it and draws from it holds `TORCH_TURN`: rounds of simulations and initial models are then the same whatever
another thread does.
"""

from __future__ import annotations

import threading

TORCH_TURN = threading.Lock()
