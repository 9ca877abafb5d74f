"""Jobs: events for each reader, the result, errors, cancellation, and the same in an asyncio loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.scripting.frames import Rows, frame_of
from fedpatch.shared.scripting.jobs import BackgroundJob, Cancellation


def counting(emit, cancellation) -> str:
    for number in range(3):
        emit(number)
    return "counted"


def until_cancelled(emit, cancellation) -> str:
    ended = threading.Event()
    with cancellation.calls(ended.set):
        emit("begun")
        ended.wait()
    return "cancelled"


def failing(emit, cancellation) -> str:
    emit("begun")
    raise DataError("train_x of device 7 holds NaN")


def test_each_iteration_of_a_job_gets_all_events():
    job = BackgroundJob("counting", counting)
    assert job.result() == "counted"
    assert [list(job), list(job)] == [[0, 1, 2], [0, 1, 2]]
    assert job.done


def test_job_that_has_ended_stays_ended_after_an_event_of_another_thread():
    """A tracker that was abandoned at the end of a run may fail later, with a line to the user."""
    emits: list[Callable[[str], None]] = []

    def work(emit: Callable[[str], None], cancellation: Cancellation) -> str:
        emits.append(emit)
        return "ended"

    job = BackgroundJob("working", work)
    job.result()
    emits[0]("late")
    assert job.done and job.result(0.0) == "ended"
    assert list(job) == []


def test_iteration_gets_an_event_before_the_job_ends():
    with BackgroundJob("waiting", until_cancelled) as job:
        assert next(iter(job)) == "begun"
        assert not job.done


def test_cancelled_job_returns_its_result():
    job = BackgroundJob("waiting", until_cancelled)
    job.cancel()
    job.cancel()
    assert job.result() == "cancelled"


def test_job_is_cancelled_at_the_end_of_its_block():
    with BackgroundJob("waiting", until_cancelled) as job:
        pass
    assert job.done and job.result() == "cancelled"


def test_result_raises_the_error_of_the_work():
    job = BackgroundJob("failing", failing)
    with pytest.raises(DataError, match="device 7"):
        job.result()
    assert list(job) == ["begun"]


def test_result_raises_timeout_error_and_the_job_goes_on():
    with BackgroundJob("waiting", until_cancelled) as job:
        with pytest.raises(TimeoutError, match="waiting has not ended after 0 s"):
            job.result(0.0)
        assert not job.done


def test_async_iteration_and_await_give_events_and_result():
    async def read() -> tuple[list[int], str]:
        job: BackgroundJob[int, str] = BackgroundJob("counting", counting)
        return [event async for event in job], await job

    assert asyncio.run(read()) == ([0, 1, 2], "counted")


def test_two_jobs_are_read_at_once_in_one_loop():
    async def read() -> list[str]:
        first, second = BackgroundJob("first", until_cancelled), BackgroundJob("second", until_cancelled)

        async def end(job: BackgroundJob[str, str]) -> str:
            async for _ in job:
                job.cancel()
            return await job

        return list(await asyncio.gather(end(first), end(second)))

    assert asyncio.run(read()) == ["cancelled", "cancelled"]


def test_await_raises_the_error_of_the_work():
    async def read() -> None:
        await BackgroundJob("failing", failing)

    with pytest.raises(DataError):
        asyncio.run(read())


def test_job_is_cancelled_when_the_interpreter_exits():
    program = """
from fedpatch.shared.scripting.jobs import BackgroundJob
import threading
def work(emit, cancellation):
    ended = threading.Event()
    with cancellation.calls(ended.set):
        emit(None)
        ended.wait()
    print("ended by itself", flush=True)
next(iter(BackgroundJob("work", work)))
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=100) == "ended by itself\n"


def test_frame_without_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'fedpatch\[notebook\]'"):
        Rows().to_frame()


def test_frame_is_indexed_where_there_are_rows():
    pytest.importorskip("pandas")
    assert frame_of([{"round": 1, "ua": 0.5}], "round").loc[1, "ua"] == 0.5
    assert frame_of([], "round").empty
