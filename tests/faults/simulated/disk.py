"""The coordinator's writing threads in virtual time: each write takes a while, and the process may be killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tests.faults.simulated.processes import Killed, Process

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

WRITE_S = 0.02


class _Written(Future[Any]):
    """A future whose reader waits in the world's time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> Any:
        """Return the result of the work once it is done."""
        self._world.wait(self.done, timeout)
        return super().result(0)


class Disk:
    """Replaces the thread pool of `process`: it does one piece of work after the other."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._futures: list[_Written] = []
        self._free_at = 0.0

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        world, future = self._world, _Written(self._world)
        self._futures.append(future)
        self._free_at = max(self._free_at, world.now) + WRITE_S
        world.agenda.at(self._free_at, lambda: self._run(work, future))
        return future

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the remaining work, if the process is alive."""
        for future in self._futures:
            if not self._process.dead:
                self._world.wait(future.done, None)

    def _run(self, work: Callable[[], Any], future: Future[Any]) -> None:
        if self._process.dead:
            return
        with self._world.turns.of(self._process):
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
            except Killed:
                pass  # the waiting thread notices it
