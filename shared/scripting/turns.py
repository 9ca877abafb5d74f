"""A lock for the random state of torch, which the threads of a process share.

Code that seeds this state and draws from it holds `TORCH_TURN`, so that no other thread changes the results of
simulated rounds or initial models.
"""

from __future__ import annotations

import threading

TORCH_TURN = threading.Lock()
