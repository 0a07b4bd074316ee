import asyncio
import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rolloutkit.live import LineView, Progress, QuietView, TableView, make_view
from rolloutkit.live.state import ACTING, GENERATING, PARKED, WAITING, OldSample, Snapshot
from rolloutkit.live.views import line, table
from rolloutkit.routing import WorkerView
from rolloutkit.types import Status


def snapshot(num_ended: int = 3, elapsed: float = 62.0, **changes) -> Snapshot:
    fields = {
        "elapsed_seconds": elapsed,
        "num_samples": 10,
        "num_queued": 5,
        "num_alive": 2,
        "ended": {Status.COMPLETED: num_ended, Status.FAILED: 0, Status.CANCELLED: 0},
        "activities": {GENERATING: 1, WAITING: 1, ACTING: 0, PARKED: 0},
        "tokens_per_second": 81.4,
        "seconds_left": 75.2,
        "oldest": [OldSample("t#0", 4, "waiting for bash", 12.0, 61.0)],
    }
    return Snapshot(**{**fields, **changes})


def test_one_line_tells_everything():
    assert line(snapshot()) == (
        "1:02 3/10 ended, 0 failed, 5 queued, 2 alive (1 generating, 1 waiting for an action), "
        "81 tokens/s, about 1:15 left, oldest t#0 waiting for bash for 0:12"
    )


def test_workers_are_told_by_their_loads_and_by_name_when_they_are_down():
    def worker(name, residents, calls, *, is_up=True):
        return WorkerView(
            name=name,
            is_up=is_up,
            num_residents=residents,
            num_calls=calls,
            active_tokens=0,
            slowness=1.0,
            num_ejections=0,
        )

    workers = [worker("a", 3, 1), worker("b", 7, 2), worker("c", 0, 0, is_up=False)]

    told = "workers 2/3 up, samples 3-7 and calls 1-2 each; down: c"
    assert told in line(snapshot(workers=workers))
    console = Console(file=io.StringIO(), width=100)
    console.print(table(snapshot(workers=workers), "run"))
    assert told in console.file.getvalue()


def test_one_line_admits_what_is_not_known():
    text = line(
        snapshot(num_samples=None, seconds_left=None, oldest=[], num_alive=0, activities={})
    )

    assert text.startswith("1:02 3 ended")
    assert text.endswith("0 alive (none), 81 tokens/s, time left unknown")


def test_table_shows_counts_and_the_oldest_samples():
    text = printed(snapshot(ended={Status.COMPLETED: 2, Status.FAILED: 1, Status.CANCELLED: 0}))

    assert "quickstart  1:02, about 1:15 left" in text
    assert "3/10 ended  1 failed  0 cancelled" in text
    assert "5 queued, 2 alive: 1 generating, 1 waiting for an action; 81 tokens/s" in text
    assert "t#0             1:01      4  waiting for bash  0:12" in text


def test_table_before_anything_is_known():
    text = printed(snapshot(num_ended=0, num_samples=None, num_alive=0, oldest=[], elapsed=0.0))

    assert "0/1 ended" in text


def test_hours_are_shown_as_such():
    assert line(snapshot(elapsed=7_325.0)).startswith("2:02:05 ")


async def test_lines_come_when_samples_end_and_every_ten_seconds():
    stderr = io.StringIO()
    started = asyncio.get_running_loop().time()

    def look() -> Snapshot:
        elapsed = asyncio.get_running_loop().time() - started
        return snapshot(num_ended=0 if elapsed < 5 else 1, elapsed=elapsed)

    with LineView(look, Console(file=stderr, width=40)) as view:
        await asyncio.sleep(17)
        view.say("interrupted")

    times = [text.split()[0] for text in stderr.getvalue().splitlines()]
    assert times == ["0:02", "0:06", "0:16", "interrupted"]


async def test_table_is_redrawn_and_then_removed():
    stderr = io.StringIO()
    console = Console(file=stderr, force_terminal=True, width=100)
    looks = 0

    def look() -> Snapshot:
        nonlocal looks
        looks += 1
        return snapshot()

    with TableView(look, console, "mine") as view:
        await asyncio.sleep(2.1)
        view.say("interrupted: 3 samples")

    assert looks == 9
    assert "interrupted: 3 samples" in stderr.getvalue()
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_virtual_runs_show_no_progress(capsys):
    view = make_view(_NO_RUN, Progress(1), title="x", is_quiet=False)

    with view:
        view.say("interrupted")

    assert isinstance(view, QuietView)
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.real_time
async def test_the_view_goes_by_where_stderr_leads(monkeypatch):
    elsewhere = make_view(_NO_RUN, Progress(1), title="x", is_quiet=False)
    quiet = make_view(_NO_RUN, Progress(1), title="x", is_quiet=True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    terminal = make_view(_NO_RUN, Progress(1), title="x", is_quiet=False)

    assert isinstance(elsewhere, LineView)
    assert isinstance(quiet, QuietView)
    assert isinstance(terminal, TableView)


_NO_RUN: Any = SimpleNamespace(alive={}, num_queued=0)


def printed(state: Snapshot) -> str:
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as capture:
        console.print(table(state, "quickstart"))
    return capture.get()
