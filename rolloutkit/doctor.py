"""Pre-flight checks: everything that can be found out before the first sample starts.

`examine` looks at the configuration and this machine and makes the parts of a run on the way;
`examine_engine` looks at the opened engine. `rolloutkit doctor` shows what they found,
and `rolloutkit run` refuses to start on a failure.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterable
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from rolloutkit.batch import count_samples
from rolloutkit.config import (
    Parts,
    RunConfig,
    hosted_environment,
    make_engine,
    make_environment,
    make_history,
    make_renderer,
    make_tasks,
)
from rolloutkit.errors import ConfigError
from rolloutkit.foresight import refuse_clairvoyance
from rolloutkit.render import TokenRenderer, check_append_only
from rolloutkit.tail import NEEDS_PROGRESS

T = TypeVar("T")

_SPARE_FILES = 128  # outputs, libraries, sockets that are being closed
_LITTLE_DISK = 1 << 30  # 1,000 samples of 30,000 tokens
_NO_DISK = 64 << 20  # twenty quick starts


class Verdict(StrEnum):
    """What a check found."""

    OK = "ok"
    WARN = "warn"  # a run may start
    FAIL = "fail"  # a run would fail


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, in one line; where something is wrong it says what to do."""

    name: str
    verdict: Verdict
    message: str


class Examination(NamedTuple):
    """What was found, and the parts of the run, unless one of them cannot be made."""

    checks: list[Check]
    parts: Parts | None


def require(checks: Iterable[Check]) -> None:
    """Raise ConfigError with the first failure, if there is one."""
    for check in checks:
        if check.verdict is Verdict.FAIL:
            raise ConfigError(check.message)


def examine(config: RunConfig, output_dir: Path) -> Examination:
    """Check everything but the engine. Blocks."""
    found = _Findings()
    found.add("python", _python())
    found.add("disk", _disk(output_dir))
    environment = found.attempt(
        "environment", lambda: make_environment(config), lambda made: made.name
    )
    tasks = None
    if environment is not None:
        tasks = found.attempt(
            "tasks",
            lambda: make_tasks(config, environment),
            lambda made: f"{len(made)} tasks, {count_samples(made)} samples",
        )
    num_alive = min(config.admission.max_samples, count_samples(tasks or ()) or 0)
    found.add("open files", _open_files(num_alive))
    renderer = found.attempt("renderer", lambda: _renderer(config), _describe_renderer)
    has_tokenizer = renderer is not None and renderer.made is not None
    engine = found.attempt(
        "engine",
        lambda: make_engine(
            config.engine, config.router, has_tokenizer=has_tokenizer, seed=config.run.seed
        ),
        None,
    )
    found.attempt("orders", lambda: refuse_clairvoyance(config.actions, config.admission), None)
    if environment is None or tasks is None or renderer is None or engine is None:
        return Examination(found.checks, None)
    history = None
    if config.history.path is not None:
        history = found.attempt(
            "history",
            lambda: make_history(config, environment),
            lambda made: f"{made.num_epochs} epochs, {len(made.tasks)} tasks" if made else "none",
        )
        if history is None:
            return Examination(found.checks, None)
    hosted = hosted_environment(config, environment)
    return Examination(found.checks, Parts(engine, hosted, tasks, renderer.made, history))


def examine_engine(config: RunConfig, parts: Parts) -> list[Check]:
    """What the opened engine claims, against what the run asks of it."""
    able = parts.engine.capabilities
    found = _Findings()
    context = "unknown" if able.max_context is None else f"{able.max_context} tokens"
    form = "token ids" if able.token_ids else "text only"
    found.add("engine", Check("", Verdict.OK, f"answers; {form}, context of {context}"))
    if config.run.constrain_calls is True and not able.grammar:
        found.fail(
            "tool calls",
            "run.constrain_calls: this engine honours no JSON schema, got true: use auto or false",
        )
    if config.tail.hedge.model_calls and not able.progress:
        found.fail("hedges", NEEDS_PROGRESS)
    if config.tail.oversampling.extra:
        found.warn(
            "over-sampling",
            "groups keep their fastest samples, mostly short ones: not for training",
        )
    if able.token_ids and parts.renderer is None:
        found.warn(
            "renderer", "none: the environment must show token ids, or set renderer.tokenizer"
        )
    if config.sampling.logprobs and not able.logprobs:
        found.warn(
            "log-probs", "the engine gives none: trajectories are for evaluation, not for training"
        )
    return found.checks


class _Findings:
    def __init__(self) -> None:
        self.checks: list[Check] = []

    def add(self, name: str, check: Check) -> None:
        self.checks.append(msgspec.structs.replace(check, name=name))

    def warn(self, name: str, message: str) -> None:
        self.checks.append(Check(name, Verdict.WARN, message))

    def fail(self, name: str, message: str) -> None:
        self.checks.append(Check(name, Verdict.FAIL, message))

    def attempt(
        self, name: str, make: Callable[[], T], describe: Callable[[T], str] | None
    ) -> T | None:
        """What `make` makes; a ConfigError becomes a failed check and None."""
        try:
            made = make()
        except ConfigError as error:
            self.fail(name, str(error))
            return None
        if describe is not None:
            self.checks.append(Check(name, Verdict.OK, describe(made)))
        return made


class _Made(NamedTuple):
    """A renderer, or the knowledge that the run has none."""

    made: TokenRenderer | None


def _renderer(config: RunConfig) -> _Made:
    renderer = make_renderer(config)
    if renderer is not None:
        check_append_only(renderer)
    return _Made(renderer)


def _describe_renderer(renderer: _Made) -> str:
    if renderer.made is None:
        return "none, since there is no tokenizer"
    return f"{renderer.made.tokenizer.name_or_path}: its template only appends"


def _python() -> Check:
    version = f"Python {platform.python_version()} on {platform.system()}"
    if find_spec("uvloop") is None:
        return Check(
            "", Verdict.WARN, f"{version} without uvloop: 1,000 and more samples run slower"
        )
    return Check("", Verdict.OK, version)


def _disk(output_dir: Path) -> Check:
    place = output_dir.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    message = f"{free / 2**30:.1f} GiB free at {place}"
    if free < _NO_DISK:
        return Check("", Verdict.FAIL, f"output.dir: {message}: make room or choose another place")
    return Check("", Verdict.OK if free >= _LITTLE_DISK else Verdict.WARN, message)


def _open_files(num_alive: int) -> Check:
    """A connection and something of the environment's for each living sample."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return Check("", Verdict.OK, "no limit")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * num_alive + _SPARE_FILES
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return Check("", Verdict.OK, f"limit {limit}, {num_alive} samples may live at once")
    message = f"limit {limit}, but {num_alive} living samples may want {needed}"
    return Check("", Verdict.WARN, f"{message}: ulimit -n {needed}, or lower admission.max_samples")
