import html.parser
import json
from pathlib import Path
from typing import Any

import msgspec

from rolloutkit.record.events import Event, RunStarted
from rolloutkit.report.html import write_html
from rolloutkit.report.page import MAX_ROWS, MAX_SPANS, Page, build_page
from rolloutkit.report.statistics import RunStatistics
from rolloutkit.report.summary import Summary
from rolloutkit.types import FailureKind
from tests.unit.report.recorded_runs import admitted, call, ended, small_run, step

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>&amp;"


class _Scripts(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.starts: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "script":
            self.starts.append(dict(attrs))
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.starts and self.cdata_elem == "script":
            self.texts[-1] += data


def summarized(events: list[Event]) -> Summary:
    statistics = RunStatistics()
    for event in events:
        statistics(event)
    return statistics.summary()


def page_of(events: list[Event]) -> Page:
    return build_page(events, summarized(events))


def written(events: list[Event], path: Path) -> str:
    write_html(events, summarized(events), path)
    return path.read_text()


def content(text: str) -> dict[str, Any]:
    parser = _Scripts()
    parser.feed(text)
    return json.loads(parser.texts[0])


def many_samples(num_samples: int, num_turns: int = 8) -> list[Event]:
    """Samples one after the other in each of a few lanes, with uneven spans."""
    events: list[Event] = [RunStarted(t=0.0, time="virtual", num_samples=num_samples)]
    for i in range(num_samples):
        name, t = f"task-{i}#0", float(i)
        events.append(admitted(name, t=t, seq=i, wait=t))
        for turn in range(num_turns):
            events.append(call(name, t=t + 1.0, seconds=1.0, queue=0.1, context=10, output=5))
            t += 2.0 + (i + turn) % 7 / 8
            events.append(step(name, t=t, seconds=0.7, wait=0.3))
        events.append(ended(name, t=t, num_turns=num_turns))
    return events


def test_page_of_a_run_tells_its_rows_pools_and_tail() -> None:
    page = page_of(small_run())

    assert page.seconds == 12.0
    assert page.gantt.ids == ["a#0", "b#0"]
    assert [pool.name for pool in page.pools] == ["files.step", "engine", "files.close"]
    assert [row.sample_id for row in page.tail] == ["b#0", "a#0"]
    assert page.tail[0].advice.startswith("Waited 3.00 s for slots. Would help: more slots")
    assert page.distributions["turns per sample"].largest == 2


def test_samples_that_ended_alike_share_a_line() -> None:
    events: list[Event] = [RunStarted(t=0.0)]
    for i in range(3):
        events += [
            admitted(f"t#{i}", t=0.0, seq=i),
            ended(f"t#{i}", t=1.0 + i, failure=FailureKind.ENGINE),
        ]

    (ending,) = page_of(events).endings

    assert (ending.status, ending.reason, ending.count) == ("failed", "engine", 3)
    assert ending.example == "t#0"


def test_row_in_ticks_adds_up_to_the_samples_time() -> None:
    gantt = page_of(small_run()).gantt

    for start, spans, ended_at in zip(gantt.starts, gantt.spans, (10.5, 12.0), strict=True):
        end = (start + sum(spans[1::2])) * gantt.seconds_per_tick
        assert abs(end - ended_at) <= gantt.seconds_per_tick


def test_text_of_a_run_never_becomes_markup(tmp_path: Path) -> None:
    events = [
        RunStarted(t=0.0),
        admitted(HOSTILE, t=0.0, seq=0),
        step(HOSTILE, t=1.0, seconds=1.0, kind=HOSTILE),
        msgspec.structs.replace(
            ended(HOSTILE, t=1.0, failure=FailureKind.PROGRAM), failure_message=HOSTILE
        ),
    ]

    text = written(events, tmp_path / "report.html")

    parser = _Scripts()
    parser.feed(text)
    assert parser.starts == [{"type": "application/json", "id": "content"}, {}]
    assert "img" not in parser.tags
    read = content(text)
    assert read["gantt"]["ids"] == [HOSTILE]
    assert read["endings"][0]["message"] == HOSTILE


def test_page_loads_nothing_and_says_so(tmp_path: Path) -> None:
    text = written(small_run(), tmp_path / "report.html")

    assert "default-src 'none'" in text
    assert "<script src" not in text
    assert "@import" not in text
    assert text.replace("http://www.w3.org/2000/svg", "").count("http") == 1  # http-equiv


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    first = written(small_run(), tmp_path / "a.html")

    assert written(small_run(), tmp_path / "b.html") == first


def test_run_without_any_ended_sample_has_a_page(tmp_path: Path) -> None:
    read = content(written(small_run()[:1], tmp_path / "report.html"))

    assert read["gantt"]["ids"] == []
    assert "nothing to judge" in read["verdict"]


def test_page_of_a_thousand_samples_stays_small_and_shows_them_all(tmp_path: Path) -> None:
    text = written(many_samples(1_000), tmp_path / "report.html")

    assert len(text) < 5_000_000
    assert len(content(text)["gantt"]["ids"]) == 1_000


def test_of_many_samples_an_even_choice_is_drawn_with_the_last_ones() -> None:
    page = page_of(many_samples(2 * MAX_ROWS, num_turns=1))

    assert MAX_ROWS <= len(page.gantt.ids) <= MAX_ROWS + 5
    assert page.gantt.num_samples == 2 * MAX_ROWS
    assert {row.sample_id for row in page.tail} <= set(page.gantt.ids)


def test_many_spans_are_drawn_coarser() -> None:
    page = page_of(many_samples(100, num_turns=1_000))

    assert sum(map(len, page.gantt.spans)) <= 2 * MAX_SPANS
    assert min(map(len, page.gantt.spans)) > 0
