"""What a person sees of a run."""

from __future__ import annotations

from fedpatch.coordinator.observability.snapshot import take_snapshot
from fedpatch.shared.wire.messages import Accept, Progress
from fedpatch.shared.wire.reason_codes import JobPhase
from tests.coordinator.engines import BLOB, asking, engine, report_of, send
from tests.support.specs import model, there


class TestSnapshot:
    def test_shows_who_is_missing_between_rounds(self):
        """So many of so many are there."""
        made = engine(devices=3)
        made.on_state("a", there(), 1.0)
        seen = take_snapshot(made, 1.0)
        assert (seen.phase, seen.present, seen.wanted, seen.devices, seen.elapsed_s) == ("waiting", 1, 3, (), 0.0)

    def test_shows_each_device_of_the_round(self):
        """Where it is, how far its training, and how many have reported of how many that must."""
        made = asking("abc", quorum=0.6)
        for device in "ab":
            send(made, device, Accept(10))
        send(made, "b", Progress(JobPhase.TRAINING, 1, 4))
        report_of(made, "c")
        seen = take_snapshot(made, 8.0)
        assert [(line.device, line.state.value, line.progress) for line in seen.devices] == [
            ("a", "accepted", 0.0),
            ("b", "training", 0.25),
            ("c", "reported", 0.0),
        ]
        assert (seen.reported, seen.needed, seen.user_accuracy, seen.eta_s, seen.elapsed_s) == (1, 2, 0.5, None, 8.0)

    def test_shows_what_has_travelled_in_the_round(self):
        """The model, once for each device that had the whole of it, and the chunks that came; none between rounds."""
        made = asking("ab", quorum=0.6)
        report_of(made, "a")
        send(made, "b", Accept(10))
        seen = take_snapshot(made, 8.0)
        assert (seen.bytes_down, seen.bytes_up) == (model().size_bytes, len(BLOB))
        assert made.open is not None
        assert made.open.record("aggregated").bytes_up == seen.bytes_up
        idle = take_snapshot(engine(devices=3), 1.0)
        assert (idle.bytes_down, idle.bytes_up) == (0, 0)

    def test_expects_what_it_has_seen(self):
        """The time to the quorum is that of the rounds before."""
        made = asking("a")
        report_of(made, "a", 12.0)
        assert made.eta_s(12.0) is None
        made.aggregated(20.0)
        made.model_published(model(), 20.0)
        assert [made.eta_s(now) for now in (20.0, 25.0, 60.0)] == [12.0, 7.0, 0.0]
