"""Reads a recorded run back, event by event, and refuses what is not one.

The end of a trace may be missing, since runs get killed: reading then stops at the last whole
event, and the missing `RunEnded` tells. Anything else that is wrong raises ConfigError with the
line at fault.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.record.events import SCHEMA_VERSION, Event, RunStarted

_CHUNK_BYTES = 1 << 16
_REMEDY = "record the run again or restore the file"


def read_trace(path: Path) -> Iterator[Event]:
    """Yield the events of a trace file in order; costs memory for one chunk only.

    A trace whose last event is not `RunEnded` is the prefix of a run that was killed.
    """
    decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
    number = 0
    for number, line in enumerate(_lines(path), start=1):
        if number == 1:
            _check_version(path, line)
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{path} line {number} is not a recorded event: {error}; {_REMEDY}"
            ) from error
    if number == 0:
        raise ConfigError(f"{path} holds no event: {_REMEDY}")


class _Header(msgspec.Struct, rename={"kind": "event"}):
    kind: str
    schema_version: int


def _check_version(path: Path, line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} line 1 does not start a recorded run: {error}") from error
    if header.kind != RunStarted.__struct_config__.tag:
        raise ConfigError(
            f"{path} line 1 does not start a recorded run: its event is {header.kind!r}"
        )
    if not 1 <= header.schema_version <= SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema version {header.schema_version}, this rolloutkit reads up to "
            f"{SCHEMA_VERSION}: read it with the version that wrote it"
        )


def _lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a gzip file that may be cut off at its end."""
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    rest = b""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                *lines, rest = (rest + unpack.decompress(chunk)).split(b"\n")
                yield from lines
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except zlib.error as error:
        raise ConfigError(f"{path} is not a whole gzip file: {error}; {_REMEDY}") from error
    if unpack.eof and (rest or unpack.unused_data):
        raise ConfigError(f"{path} goes on after its last whole event: {_REMEDY}")
