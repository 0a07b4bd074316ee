"""The command `rolloutkit VERB [options] [key=value ...]`: a table of verbs, each a module in here.

An error becomes one line on stderr and an exit code here and nowhere else. Heavy imports wait until
a verb runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rolloutkit.cli.exit_codes import ExitCode, explain
from rolloutkit.errors import ConfigError, RolloutError


class Verb(NamedTuple):
    """A verb; its module has `add_arguments(parser)` and `main(arguments) -> int`."""

    module: str
    help: str


VERBS = {
    "run": Verb("run", "run a batch of tasks (without arguments: the quick start)"),
    "doctor": Verb("doctor", "check whether a run would start, and say what to do"),
    "explain": Verb("waits", "say why a sample of a run waited, and behind whom"),
    "plan": Verb("plan", "say how many samples to keep alive on which GPUs, and with which flags"),
    "replay": Verb("replay", "run recorded samples again, in virtual time; --compare settings"),
    "report": Verb("report", "show a finished run's figures again, from its trace"),
    "trace": Verb("trace", "look at a trace, take private texts out, import others' recordings"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(argv)
    except RolloutError as error:
        return explain(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(_overview())
        return ExitCode.OK
    if argv[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"rolloutkit {version('rolloutkit-rl')}\n")
        return ExitCode.OK
    verb = VERBS.get(argv[0])
    if verb is None:
        raise ConfigError(f"unknown verb: expected one of {', '.join(VERBS)}, got {argv[0]!r}")
    module: Any = importlib.import_module(f"rolloutkit.cli.{verb.module}")
    parser = _Parser(prog=f"rolloutkit {argv[0]}", description=verb.help)
    module.add_arguments(parser)
    arguments = parser.parse_intermixed_args(argv[1:])
    _find_modules_here()
    return module.main(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}: see {self.prog} --help")


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:{width}}  {verb.help}" for name, verb in VERBS.items())
    return (
        "usage: rolloutkit VERB [options] [key=value ...]\n\n"
        f"{verbs}\n\n"
        "`rolloutkit VERB --help` tells more about a verb.\n"
    )


def _find_modules_here() -> None:
    """Let `target: my_module:MyClass` name a file in the current directory, as for `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
