"""Reads trace files that hold numbers only: one recorded sample a line, no queueing (tests/data).

What a line does not know is derived by the rule of its family of files (`record/chains.py`), or, as
it is recorded, filled by the rule that the caller names; else it is refused with its line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.record.chains import RULES, RecordedChain, RecordedTurn, Trace, TraceTurn


class NumericRule(StrEnum):
    """How unknown figures are derived. `auto` goes by the origin that a line's id names."""

    AUTO = "auto"
    PLAIN = "plain"  # nothing is derived
    WEKA = "weka"
    MINISWE = "miniswe"
    BFCL = "bfcl"


_GZIP = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 16
_ORIGINS = {"weka": "weka", "miniswe-gemini3": "miniswe", "bfcl-gt": "bfcl"}


class Fills(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in for unknown figures; None refuses them."""

    tokens: int | None = None
    seconds: float | None = None


def read_numeric(path: Path, rule: NumericRule, fills: Fills) -> list[RecordedChain]:
    """The chains of a file, one a line. Raises ConfigError with the line that is wrong."""
    decoder = msgspec.json.Decoder(Trace)
    chains: list[RecordedChain] = []
    lines_of: dict[str, int] = {}
    for number, line in enumerate(lines(path), start=1):
        try:
            trace = decoder.decode(line)
            chains.append(complete(trace, rule, fills))
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(
                f"{path} line {number}: {error}: correct the line or leave it out"
            ) from None
        first = lines_of.setdefault(trace.trace_id, number)
        if first != number:
            raise ConfigError(
                f"{path} line {number}: trace_id {trace.trace_id!r} is that of line {first} too: "
                "ids must be unique"
            )
    if not chains:
        raise ConfigError(f"{path} holds no trace: give another file")
    return chains


def first_line(path: Path) -> bytes:
    """The first line, gzipped or not, also of a file that is cut off later. Raises ConfigError."""
    line = bytearray()
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
            file.seek(0)
            unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
            while b"\n" not in line and (chunk := file.read(_CHUNK_BYTES)):
                line += unpack.decompress(chunk) if is_packed else chunk
    except zlib.error as error:
        raise ConfigError(f"{path} is not a whole gzip file: {error}: restore it") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return bytes(line).partition(b"\n")[0]


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a JSON lines file, gzipped or not. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
            yield from file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} is not a whole gzip file: {error}: restore it") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _check(trace: Trace) -> None:
    if not trace.turns:
        raise ValueError("turns is empty")
    for index, turn in enumerate(trace.turns):
        for name in turn.__struct_fields__:
            value = getattr(turn, name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"turns[{index}].{name} is negative: {value}")


def complete(trace: Trace, rule: NumericRule, fills: Fills) -> RecordedChain:
    """The chain with unknown figures derived or filled. Raises ValueError where neither may be."""
    _check(trace)
    family = rule.value
    if rule is NumericRule.AUTO:
        family = _ORIGINS.get(trace.trace_id.partition("/")[0], NumericRule.PLAIN.value)
    if family == NumericRule.PLAIN.value:
        return _plain(trace, fills)
    return RULES[family](trace)


def _plain(trace: Trace, fills: Fills) -> RecordedChain:
    """The chain as it is recorded; without `context_tokens` contexts grow by what was said."""
    turns: list[RecordedTurn] = []
    said = 0
    for index, turn in enumerate(trace.turns):
        new = _tokens(turn.prompt_tokens_new, f"turns[{index}].prompt_tokens_new", fills)
        output = max(1, _tokens(turn.output_tokens, f"turns[{index}].output_tokens", fills))
        context = said + new if turn.context_tokens is None else turn.context_tokens
        seconds = _tool_seconds(turn, f"turns[{index}].tool_seconds", fills)
        turns.append(RecordedTurn(context, max(1, min(new, context)), output, seconds))
        said = context + output
    return RecordedChain(trace.trace_id, tuple(turns))


def _tokens(value: int | None, name: str, fills: Fills) -> int:
    known = fills.tokens if value is None else value
    if known is None:
        raise ValueError(f"{name} is not recorded; fill_tokens assumes a number")
    return known


def _tool_seconds(turn: TraceTurn, name: str, fills: Fills) -> float:
    if turn.tool is None and turn.tool_seconds is None:
        return 0.0  # no tool was called
    known = fills.seconds if turn.tool_seconds is None else turn.tool_seconds
    if known is None:
        raise ValueError(f"{name} is not recorded; fill_seconds assumes one")
    return known
