"""Writes what a run directory holds beside trace and trajectories, and reports an older one.

Files are replaced as a whole, so that a run that is killed meanwhile leaves the former ones.
Everything here blocks: call it off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rolloutkit.errors import ConfigError, RunFailed
from rolloutkit.record.trace import read_trace
from rolloutkit.report.comparison import compare
from rolloutkit.report.html import write_html, write_page
from rolloutkit.report.page import build_page
from rolloutkit.report.statistics import RunStatistics
from rolloutkit.report.summary import Summary
from rolloutkit.report.timeline import write_timeline

TRACE_NAME = "trace.jsonl.gz"
SUMMARY_NAME = "summary.json"
TIMELINE_NAME = "timeline.json"
HTML_NAME = "report.html"


def write_outputs(directory: Path, summary: Summary) -> None:
    """Write `summary.json`, and `timeline.json` and `report.html` where the directory has a trace.

    Raises RunFailed when the files cannot be written.
    """
    _replace(directory / SUMMARY_NAME, lambda path: path.write_bytes(encode_summary(summary)))
    trace = directory / TRACE_NAME
    if trace.exists():
        _replace(directory / TIMELINE_NAME, lambda path: write_timeline(read_trace(trace), path))
        _replace(directory / HTML_NAME, lambda path: write_html(read_trace(trace), summary, path))


def encode_summary(summary: Summary) -> bytes:
    """The summary as the text of `summary.json`; equal summaries give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(summary, order="deterministic")) + b"\n"


def summarize_trace(path: Path) -> Summary:
    """The figures of a recorded run; raises ConfigError when `path` is not a trace."""
    statistics = RunStatistics()
    for event in read_trace(path):
        statistics(event)
    return statistics.summary()


def report_directory(directory: Path) -> Summary:
    """Compute a run's figures again from its trace, write its outputs anew and return the figures.

    Raises ConfigError when `directory` holds no readable trace.
    """
    trace = directory / TRACE_NAME
    if not trace.exists():
        raise ConfigError(f"{directory} holds no {TRACE_NAME}: give the output directory of a run")
    summary = summarize_trace(trace)
    write_outputs(directory, summary)
    return summary


def write_page_file(directories: Sequence[Path], summaries: Sequence[Summary], path: Path) -> None:
    """Write the page of one run, or the comparison of several, to `path`.

    Raises RunFailed when it cannot be written.
    """
    pages = [
        build_page(read_trace(directory / TRACE_NAME), summary)
        for directory, summary in zip(directories, summaries, strict=True)
    ]
    content = pages[0] if len(pages) == 1 else compare([str(it) for it in directories], pages)
    _replace(path, lambda part: write_page(content, part))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        part.replace(path)
    except OSError as error:
        raise RunFailed(
            f"cannot write {path}: {error.strerror}; make room, then `rolloutkit report` writes it"
        ) from error
