"""The directory of one run: its files are opened together, and no file is ever overwritten.

`config.yaml`, `trajectories.jsonl` and `trace.jsonl.gz` exist from the start and grow with the run;
`finish` adds `summary.json`, `timeline.json`, `report.html`, and `history.json` for the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from rolloutkit.errors import ConfigError, RunFailed
from rolloutkit.estimate import History, write_history
from rolloutkit.record.events import Observer
from rolloutkit.record.recorder import Recorder, TraceWriter
from rolloutkit.report import RunStatistics, Summary, write_outputs
from rolloutkit.report.outputs import HTML_NAME, SUMMARY_NAME, TIMELINE_NAME, TRACE_NAME
from rolloutkit.sinks import JsonlSink

CONFIG_NAME = "config.yaml"
TRAJECTORIES_NAME = "trajectories.jsonl"
HISTORY_NAME = "history.json"
_NAMES = (
    CONFIG_NAME,
    TRAJECTORIES_NAME,
    TRACE_NAME,
    SUMMARY_NAME,
    TIMELINE_NAME,
    HTML_NAME,
    HISTORY_NAME,
)


class RunDirectory:
    """Give `sink` and `recorder` to a run; leave the `with` block when it has ended, however."""

    def __init__(
        self, path: Path, *, config: str | None = None, observers: Iterable[Observer] = ()
    ) -> None:
        """Make the directory where needed, and its first files; `config` is that of `config.yaml`.

        Raises ConfigError when the directory holds a run or cannot be written.
        """
        refuse_used(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if config is not None:
                with (path / CONFIG_NAME).open("x") as file:
                    file.write(config)
        except OSError as error:
            raise ConfigError(f"output.dir: cannot write {path}: {error.strerror}") from None
        self.path = path
        self._history: History | None = None
        self.sink = JsonlSink(path / TRAJECTORIES_NAME)
        self._trace = TraceWriter(path / TRACE_NAME)
        self._statistics = RunStatistics()
        self.recorder = Recorder((self._trace, self._statistics, *observers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    @property
    def summary(self) -> Summary:
        """The figures so far."""
        return self._statistics.summary(trace_complete=self.recorder.is_complete)

    def keep_history(self, history: History | None) -> None:
        """What `finish` is to write for the next epoch."""
        self._history = history

    def finish(self) -> Summary:
        """Close the trace and write what is computed from it, then the history for the next epoch.

        Blocks. Raises RunFailed.
        """
        self._trace.close()
        summary = self.summary
        write_outputs(self.path, summary)
        if self._history is not None:
            try:
                write_history(self.path / HISTORY_NAME, self._history)
            except OSError as error:
                raise RunFailed(f"cannot write {HISTORY_NAME}: {error.strerror}") from error
        return summary


def refuse_used(path: Path) -> None:
    """Raise ConfigError when `path` holds the outputs of a run, or is no directory."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"output.dir: not a directory: {path}")
    for name in _NAMES:
        if (path / name).exists():
            raise ConfigError(
                f"output.dir: {path} holds another run ({name}): choose a new directory"
            )
