"""The benchmark's files as the wheel ships them: tasks with their ground truth, and tool documents.

Reads lazily and once. Entries and documents are shared between samples and must not be changed.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.types import Message

T = TypeVar("T")

CATEGORIES = (
    "multi_turn_base",
    "multi_turn_miss_func",
    "multi_turn_miss_param",
    "multi_turn_long_context",
)

_DOCUMENT_FILES = {  # class: its tool documents
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "TwitterAPI": "posting_api.json",
    "VehicleControlAPI": "vehicle_control.json",
}
CLASSES = tuple(_DOCUMENT_FILES)


class Entry(msgspec.Struct, frozen=True):
    """One task of the benchmark; `question` and `ground_truth` are per user turn."""

    id: str
    question: tuple[tuple[Message, ...], ...]
    involved_classes: tuple[str, ...]
    initial_config: dict[str, dict[str, Any]] = {}
    missed_function: dict[str, tuple[str, ...]] = {}  # turn: names withheld until then
    ground_truth: tuple[tuple[str, ...], ...] = ()

    @property
    def is_long_context(self) -> bool:
        return "long_context" in self.id


class FunctionDocument(msgspec.Struct, frozen=True):
    """One function as the benchmark describes it; types have the benchmark's own names."""

    name: str
    description: str
    parameters: dict[str, Any]
    response: dict[str, Any]


class _Answer(msgspec.Struct, frozen=True):
    id: str
    ground_truth: tuple[tuple[str, ...], ...]


def find_entry(entry_id: str) -> Entry | None:
    """The task of that id, if the benchmark has one."""
    category = entry_id.rpartition("_")[0]
    return load_category(category).get(entry_id) if category in CATEGORIES else None


@cache
def load_category(category: str) -> dict[str, Entry]:
    """Entries by id, in the benchmark's order."""
    name = f"BFCL_v4_{category}.json"
    answers = {
        answer.id: answer.ground_truth for answer in _read(f"possible_answer/{name}", _Answer)
    }
    return {
        entry.id: msgspec.structs.replace(entry, ground_truth=answers[entry.id])
        for entry in _read(name, Entry)
    }


@cache
def load_documents(class_name: str) -> tuple[FunctionDocument, ...]:
    """The tool documents of one class, in the benchmark's order."""
    return tuple(_read(f"multi_turn_func_doc/{_DOCUMENT_FILES[class_name]}", FunctionDocument))


def find_wheel() -> Path:
    """Directory of the installed wheel. Raises ConfigError with the remedy when it is missing."""
    for package in ("bfcl_eval", "mpmath"):  # the MathAPI tools compute with mpmath
        if find_spec(package) is None:
            raise ConfigError(
                f"the BFCL environment needs the package {package}: pip install mpmath && "
                "pip install --no-deps --require-hashes -r requirements/assets.txt"
            )
    spec = find_spec("bfcl_eval")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _read(name: str, type_: type[T]) -> list[T]:
    lines = (find_wheel() / "data" / name).read_bytes().splitlines()
    decoder = msgspec.json.Decoder(type_)
    return [decoder.decode(line) for line in lines if line.strip()]
