"""One TCP connection to the broker, which may be slow, silent or cut, and the host at its end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fedpatch.simulator.fleet.virtual_clock import Action, VirtualClock

KEEPALIVE_S = 30.0
NOTICED_S = 1.5 * KEEPALIVE_S


@dataclass(frozen=True)
class Weather:
    """Delay and jitter in each direction, and the shares of messages that the broker loses or delivers twice."""

    delay_s: float = 0.02
    jitter_s: float = 0.0
    loss: float = 0.0
    twice: float = 0.0


class Wire:
    """Delivers in order, or not at all. An end is notified through its `lost` once it can notice that its peer is gone."""

    def __init__(self, agenda: VirtualClock, rng: random.Random, weather: Weather) -> None:
        self._agenda, self._rng, self._weather = agenda, rng, weather
        self.client_open = self.broker_open = True
        self.client_lost: Callable[[], None] = lambda: None
        self.broker_lost: Callable[[], None] = lambda: None
        self._free_at = {True: 0.0, False: 0.0}
        self._held: list[tuple[bool, Action]] = []
        self._silences = 0
        self.silent = False

    def up(self, action: Action) -> None:
        """Perform `action` at the broker's end."""
        self._carry(True, action)

    def down(self, action: Action) -> None:
        """Perform `action` at the client's end."""
        self._carry(False, action)

    def close_client(self) -> None:
        """The client ends or gives up: the broker notices it, unless the wire is silent."""
        if self.client_open:
            self.client_open = False
            self.up(self._broker_notices)

    def close_broker(self) -> None:
        """The broker ends, or disconnects the client."""
        if self.broker_open:
            self.broker_open = False
            self.down(self._client_notices)

    def cut(self) -> None:
        """Cut the wire: both ends notice at once, and held messages are lost."""
        self._held.clear()
        self.silent = False
        self._broker_notices()
        self._client_notices()

    def fall_silent(self) -> None:
        """Deliver nothing from now on; each end notices when it has received nothing for long enough."""
        self._silences += 1
        self.silent = True
        for notices in (self._broker_notices, self._client_notices):
            self._agenda.after(NOTICED_S * self._rng.uniform(0.8, 1.2), partial(self._after, self._silences, notices))

    def heal(self) -> None:
        """Deliver the held messages in order; an end whose peer is gone is notified."""
        self.silent = False
        held, self._held = self._held, []
        for upwards, action in held:
            self._arrive(upwards, action)
        if self.client_open and not self.broker_open:
            self._client_notices()
        if self.broker_open and not self.client_open:
            self._broker_notices()

    def _after(self, silence: int, notices: Action) -> None:
        if self.silent and silence == self._silences:
            notices()

    def _carry(self, upwards: bool, action: Action) -> None:
        at = self._agenda.now + self._weather.delay_s + self._rng.random() * self._weather.jitter_s
        at = self._free_at[upwards] = max(at, self._free_at[upwards])
        self._agenda.at(at, partial(self._arrive, upwards, action))

    def _arrive(self, upwards: bool, action: Action) -> None:
        if self.silent:
            self._held.append((upwards, action))
        elif (self.broker_open if upwards else self.client_open) or action in (
            self._broker_notices,
            self._client_notices,
        ):
            action()

    def _broker_notices(self) -> None:
        if self.broker_open:
            self.broker_open = False
            self.broker_lost()

    def _client_notices(self) -> None:
        if self.client_open:
            self.client_open = False
            self.client_lost()


class Host:
    """A machine on the network; faults affect all its wires. `reach` is ok, cut or silent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reach = "ok"
        self.wires: list[Wire] = []

    def separate(self, reach: str) -> None:
        """Cut the cable, or make the way to the broker silent."""
        if self.reach != "ok":
            return
        self.reach = reach
        for wire in self.wires:
            if reach == "cut":
                wire.cut()
            else:
                wire.fall_silent()

    def heal(self) -> None:
        self.reach = "ok"
        for wire in list(self.wires):
            wire.heal()

    def connect(self, wire: Wire) -> None:
        """Add a wire, and drop wires that both ends have closed."""
        self.wires = [one for one in self.wires if one.client_open or one.broker_open]
        self.wires.append(wire)
