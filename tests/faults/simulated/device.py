"""A device in a world: the real agent, job and hands, with real files; the world provides link, clock and training."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.runtime.agent import Agent
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.runtime.effect_runner import EffectRunner as Hands
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.idle_release import IdleTimer
from fedpatch.device_agent.runtime.presence import Identity, Presence
from fedpatch.device_agent.runtime.systemd_notify import ServiceManager
from fedpatch.device_agent.runtime.training_supervisor import TrainerEvent
from fedpatch.device_agent.state.leader_epoch import LeaderEpoch
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.storage_check import Storage
from fedpatch.shared.app.files import remove_unfinished
from fedpatch.shared.errors import DataError
from fedpatch.shared.mqtt.events import LinkEvent
from fedpatch.simulator.fleet.virtual_clock import Timer
from tests.device_agent.owners import owner_of
from tests.faults.simulated.link import SimulatedLink
from tests.faults.simulated.processes import Killed, Process
from tests.faults.simulated.trainer import SimulatedTrainer
from tests.faults.simulated.wire import Host

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

FLEET = "demo"
# A process that ends by itself is started again, as by systemd.
AGAIN_S = 5.0
# A deadline on a clock with another zero may be rounded to slightly too early.
_ROUNDING_S = 1e-6


class SimulatedDevice:
    """The device `name`, with its files in `directory`. `kill` drops everything except the files; `start` begins from them."""

    def __init__(self, world: World, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        self.host = Host(name)
        self.process: Process | None = None
        self.boots = 0
        self._world = world

    def start(self) -> None:
        if self.process is not None:
            return
        self.boots += 1
        world, boots = self._world, self.boots
        self.process = Process(self.name, world.now)
        identity = Identity(FLEET, self.name, f"{self.name}-boot-{boots}")
        self.link = SimulatedLink(
            world, self.host, client_id=identity.client_id, events=self._receiver(boots), will=identity.will()
        )
        self.trainer = SimulatedTrainer(world, self.name, self.directory / "patches", self._receiver(boots))
        link: Any = self.link
        trainer: Any = self.trainer
        self._alarm = Timer(world.agenda, lambda: self._act(boots))
        self.job = Job(max_blob_bytes=2**20, masking=MaskingRounds(self.name, world.rng.randbytes))
        self._act(boots, lambda: self._set_up(identity, link, trainer))

    def kill(self) -> None:
        """Kill it and its training; the files on the disk stay."""
        if self.process is None:
            return
        self.process.dead = True
        self.process = None
        self.boots += 1
        self.link.die()
        self.trainer.kill(notify=False)
        downloads = self._hands._downloads._files if hasattr(self, "_hands") else None
        if downloads is not None:
            downloads.close()

    def defuse(self) -> None:
        """Cancel planned kills of the device and of its training."""
        for process in (self.process, self.trainer.process if self.process else None):
            if process is not None:
                process.fuse = None

    @property
    def idle(self) -> bool:
        """Return whether it runs and only waits for a request."""
        return self.process is not None and self.job.key is None

    def _set_up(self, identity: Identity, link: Any, trainer: Any) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.directory)
        saved, bases = MaskingFile(self.directory).load(), OfferedBases(self.directory).load()
        masking = MaskingRounds(self.name, self._world.rng.randbytes, saved, offered=bases)
        self.job = Job(max_blob_bytes=2**20, masking=masking)
        owner = owner_of()
        limits = OwnerLimits(self.directory / "patches", max_steps=1000, max_epochs=100)
        self._hands = Hands(
            identity,
            link=link,
            trainer=trainer,
            usage=owner.meter,
            limits=limits,
            directory=self.directory,
            clock=self._clock,
        )
        status: Any = SimpleNamespace(write=lambda changing: None)
        self.agent = Agent(
            identity,
            self.job,
            self._hands,
            queue=SimpleQueue(),
            link=link,
            trainer=trainer,
            owner=owner,
            limits=limits,
            storage=Storage(self.directory),
            presence=Presence(identity, link, DuplicateIdDetector(identity.boot, 180.0), masks=True),
            housekeeping=Housekeeping(trainer, IdleTimer(0.0), ServiceManager()),
            status=status,
            leader=LeaderEpoch(self.directory, identity.fleet),
            clock=self._clock,
        )
        self.agent.start()

    def _receiver(self, boots: int) -> Any:
        def receive(event: LinkEvent | TrainerEvent) -> None:
            self._world.oracle.on_event(self.name, event)
            self._act(boots, lambda: self.agent.turn(event))

        return receive

    def _clock(self) -> float:
        assert self.process is not None
        return self._world.now - self.process.booted_at

    def _act(self, boots: int, does: Any = None) -> None:
        """Run one turn of the agent's loop; ignore events of an earlier start."""
        if boots != self.boots or self.process is None:
            return
        try:
            with self._world.turns.of(self.process):
                if does is not None:
                    does()
                else:
                    self.agent.turn(None)
        except Killed:
            self._world.note(f"{self.name} was killed at a write")
            self.kill()
            return
        except DataError as error:
            self._world.note(f"{self.name} ends: {error}")
            self.kill()
            self._world.agenda.after(AGAIN_S, self.start)
            return
        if (deadline := self.agent.next_deadline()) is not None:
            at = max(deadline + self.process.booted_at, self._world.now) + _ROUNDING_S
            self._alarm.set(at)
