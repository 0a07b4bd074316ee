"""`rolloutkit run`: check, run, write, report."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from rolloutkit import clock
from rolloutkit.batch import count_samples, opened, prepare
from rolloutkit.cli.arguments import add_config_arguments, load_config
from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.cli.interrupts import Interrupts
from rolloutkit.cli.summary import print_json, print_text, require_success
from rolloutkit.config import Parts, RunConfig
from rolloutkit.doctor import examine, examine_engine, require
from rolloutkit.errors import RolloutError
from rolloutkit.live import Progress, make_view
from rolloutkit.output import RunDirectory, refuse_used
from rolloutkit.report import Summary
from rolloutkit.report.outputs import HTML_NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON and nothing else"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def main(arguments: argparse.Namespace) -> int:
    """Run the configured batch. Raises ConfigError before anything is written, RunFailed after."""
    config = load_config(arguments)
    name = Path(arguments.config).stem
    output_dir = Path(config.output.dir or f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}")
    refuse_used(output_dir)
    checks, parts = examine(config, output_dir)
    require(checks)
    assert parts is not None, "parts are made unless a check failed"
    run = _Run(config, parts, output_dir, title=name, is_quiet=arguments.quiet)
    try:
        clock.run(run.main(), time=config.run.time)
    except KeyboardInterrupt:
        run.is_interrupted = True
    except RolloutError as error:
        if run.directory is None:
            raise
        run.error = error
    if run.directory is None:  # interrupted while the engine started
        return ExitCode.INTERRUPTED
    summary = run.directory.finish()
    _show(summary, config, output_dir, as_json=arguments.json)
    return _exit_code(run, summary, config)


class _Run:
    """One run, from the engine's start to its end; what came of it is read afterwards."""

    def __init__(
        self, config: RunConfig, parts: Parts, output_dir: Path, *, title: str, is_quiet: bool
    ) -> None:
        self._config = config
        self._parts = parts
        self._output_dir = output_dir
        self._title = title
        self._is_quiet = is_quiet
        self.directory: RunDirectory | None = None  # None = nothing was started
        self.error: RolloutError | None = None
        self.is_interrupted = False

    async def main(self) -> None:
        async with opened(self._parts.engine, self._config.limits.admin):
            require(examine_engine(self._config, self._parts))
            await self._run()

    async def _run(self) -> None:
        config, parts = self._config, self._parts
        num_samples = count_samples(parts.tasks, config.settings())
        progress = Progress(num_samples)
        self.directory = RunDirectory(self._output_dir, config=config.text, observers=[progress])
        orchestrator = prepare(
            self.directory.sink,
            engine=parts.engine,
            environment=parts.environment,
            renderer=parts.renderer,
            settings=config.settings(),
            recorder=self.directory.recorder,
            num_samples=num_samples,
            history=parts.history,
        )
        view = make_view(orchestrator, progress, title=self._title, is_quiet=self._is_quiet)
        interrupts = Interrupts(orchestrator, config.limits.interrupt_grace, view.say)
        try:
            with view, interrupts:
                await orchestrator.run(parts.tasks)
        finally:
            self.directory.keep_history(orchestrator.next_history())
            self.is_interrupted = interrupts.count > 0


def _show(summary: Summary, config: RunConfig, output_dir: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    print_text(summary, note=_note(config))
    sys.stdout.write(
        f"\nwritten to {output_dir}; look at {output_dir / HTML_NAME}, or show it again: "
        f"rolloutkit report {output_dir}\n"
    )


def _note(config: RunConfig) -> str:
    from rolloutkit.engines.llamacpp import LlamaCppConfig

    is_bundled = isinstance(config.engine.config, LlamaCppConfig) and not config.engine.config.model
    return "a model of 135M parameters solves few tasks, if any" if is_bundled else ""


def _exit_code(run: _Run, summary: Summary, config: RunConfig) -> ExitCode:
    if run.is_interrupted:
        return ExitCode.INTERRUPTED
    if run.error is not None:
        raise run.error
    require_success(summary, config.run.max_failed)
    return ExitCode.OK
