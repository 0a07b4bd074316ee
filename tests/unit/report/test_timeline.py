from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutkit.record.events import Event
from rolloutkit.report.timeline import write_timeline
from tests.unit.report.recorded_runs import STEP, TurnPlan, admitted, simulated_run, small_run, step

# What each phase must have, after the document "Trace Event Format" (Google).
COMMON = {"ph": str, "pid": int, "tid": int, "name": str}
REQUIRED: dict[str, dict[str, Any]] = {
    "M": {"args": dict},
    "X": {"ts": float, "dur": float, "cat": str},
    "s": {"ts": float, "id": int, "cat": str},
    "t": {"ts": float, "id": int, "cat": str},
    "f": {"ts": float, "id": int, "cat": str},
}


def drawn(events: list[Event], path: Path) -> dict[str, Any]:
    write_timeline(events, path)
    return msgspec.json.decode(path.read_bytes())


def check_format(events: list[dict[str, Any]]) -> None:
    tracks: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: defaultdict[int, str] = defaultdict(str)
    for event in events:
        for name, kind in (COMMON | REQUIRED[event["ph"]]).items():
            assert isinstance(event[name], kind), (name, event)
        place = (event["pid"], event["tid"])
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[place].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "stf":
            flows[event["id"]] += event["ph"]
            assert event["ts"] in [start for start, _ in tracks[place]]
    for slices in tracks.values():
        for (_, end), (start, _) in pairwise(slices):
            assert start >= end - 1e-3  # a nanosecond of rounding
    for phases in flows.values():
        assert phases == "s" + "t" * (len(phases) - 2) + "f"


def names(events: list[dict[str, Any]], kind: str) -> list[str]:
    return [event["args"]["name"] for event in events if event["name"] == kind]


def test_small_run_has_a_track_per_worker_slot_and_sample(tmp_path: Path) -> None:
    events = drawn(small_run(), tmp_path / "timeline.json")["traceEvents"]

    check_format(events)
    assert names(events, "process_name") == [
        "samples",
        "environment files.close",
        f"environment {STEP}",
        "worker w0",
    ]
    assert names(events, "thread_name") == [
        "a#0",
        "b#0",
        "environment files.close [0]",
        f"environment {STEP} [0]",
        "worker w0 [0]",
        "worker w0 [1]",
    ]


def test_waits_are_slices_of_their_own(tmp_path: Path) -> None:
    events = drawn(small_run(), tmp_path / "timeline.json")["traceEvents"]

    waits = [(it["name"], it["dur"]) for it in events if it.get("cat") == "wait"]

    assert waits == [
        ("waits in the engine", 0.5e6),
        ("waits for admission", 1e6),
        (f"waits for {STEP}", 3e6),
    ]


TURNS = st.lists(
    st.builds(TurnPlan, st.floats(0.0, 5.0), st.lists(st.floats(0.0, 5.0), max_size=3)), max_size=3
)


@settings(max_examples=30)
@given(st.lists(TURNS, min_size=1, max_size=5), st.integers(1, 3))
def test_any_run_fits_the_format_and_its_slots(
    tmp_path_factory: pytest.TempPathFactory, samples: list[list[TurnPlan]], slots: int
) -> None:
    run = simulated_run(samples, slots=slots, parallelism=2, max_samples=3)

    events = drawn(run, tmp_path_factory.mktemp("run") / "timeline.json")["traceEvents"]

    check_format(events)
    assert (
        sum(name.startswith(f"environment {STEP} [") for name in names(events, "thread_name"))
        <= slots
    )


def test_equal_events_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_timeline(small_run(), tmp_path / name)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_run_without_operations_is_a_valid_empty_timeline(tmp_path: Path) -> None:
    events = drawn(small_run()[:3], tmp_path / "timeline.json")["traceEvents"]

    check_format(events)
    assert names(events, "thread_name") == []


def test_sample_that_did_not_end_is_drawn_too(tmp_path: Path) -> None:
    events = drawn(small_run()[:7], tmp_path / "timeline.json")["traceEvents"]

    assert names(events, "thread_name")[:2] == ["a#0", "b#0"]


def test_large_run_keeps_its_last_operations_and_says_how_many_it_left_out(
    tmp_path: Path,
) -> None:
    run = [admitted("a#0", t=0.0, seq=0)]
    run += [step("a#0", t=t, seconds=1.0) for t in range(1, 11)]

    path = tmp_path / "timeline.json"

    write_timeline(run, path, max_operations=3)

    written = msgspec.json.decode(path.read_bytes())
    assert written["otherData"] == {"omitted_operations": 7}
    assert [it["ts"] for it in written["traceEvents"] if it["ph"] == "X"] == [7e6, 8e6, 9e6] * 2
