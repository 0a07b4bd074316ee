"""The tools of one sample: private instances of the benchmark's classes, called by name.

Results and errors read exactly as those of the official executor, without its `eval` and its module
globals. Calls take about 0.1 ms and never wait, so they run on the event loop.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from rolloutkit.types import ToolCall
from rolloutkit_bfcl.calls import WrittenCall
from rolloutkit_bfcl.dataset import CLASSES, Entry, find_wheel

_MAX_PRECISION = 10_000  # digits; more keeps the processor busy for minutes
_MAX_BITS = 14_285  # of a power; Python refuses to print integers of more than 4,300 digits


class Toolbox:
    """One private instance of every class that a task involves."""

    def __init__(self, instances: Mapping[str, object]) -> None:
        self.instances = instances
        self._methods: dict[str, Callable[..., object]] = {
            name: method
            for instance in instances.values()
            for name, method in inspect.getmembers(instance, inspect.ismethod)
            if not name.startswith("_")
        }

    def call(self, call: ToolCall) -> str:
        """Carry out one call. A tool's own error is its result; nothing is raised."""
        try:
            method = self._methods.get(call.name)
            if method is None:
                raise NameError(f"name '{call.name.partition('.')[0]}' is not defined")
            _refuse_endless(call)
            arguments = copy.deepcopy(call.arguments)  # tools keep what they are given
            return _as_text(method(**arguments))
        except Exception as error:  # noqa: BLE001 - the official executor shows the model any error
            return f"Error during execution: {error}"

    def resolve(self, written: WrittenCall) -> ToolCall:
        """Give positional arguments their names. Raises KeyError or TypeError for a wrong call."""
        signature = inspect.signature(self._methods[written.name])
        bound = signature.bind(*written.positional, **written.named)
        return ToolCall(written.name, dict(bound.arguments))


def open_toolboxes(entry: Entry, count: int = 1) -> list[Toolbox]:
    """Fresh toolboxes for one sample.

    Long-context scenarios put records of a module-level table into every instance, and tools change
    them. The copies are independent of that table and of other samples; within one call of this
    function they share those records with each other, as model and ground truth do in the official
    checker.
    """
    loaded = [{name: _load(name, entry) for name in entry.involved_classes} for _ in range(count)]
    return [Toolbox(instances) for instances in copy.deepcopy(loaded)]


@cache
def load_classes() -> dict[str, type[Any]]:
    """The benchmark's classes by name. The first call imports them, which takes 0.2 s."""
    find_wheel()
    from bfcl_eval.constants.executable_backend_config import CLASS_FILE_PATH_MAPPING

    return {
        name: getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)
        for name in CLASSES
    }


def _load(class_name: str, entry: Entry) -> object:
    instance = load_classes()[class_name]()
    if class_name != "MathAPI":  # it has no state
        scenario = copy.deepcopy(entry.initial_config.get(class_name, {}))
        instance._load_scenario(scenario, long_context=entry.is_long_context)  # noqa: SLF001
    return instance


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):  # some tools return objects
            return str(result)
    return str(result)


def _refuse_endless(call: ToolCall) -> None:
    """Refuse arithmetic that would hold the processor, and so every sample, for minutes."""
    match call.arguments:
        case {"base": int(base), "exponent": int(exponent)}:
            if (base.bit_length() - 1) * exponent > _MAX_BITS:
                raise ValueError("Exceeds the limit (4300 digits) for integer string conversion")
    for name in ("precision", "decimal_places"):
        value = call.arguments.get(name)
        if isinstance(value, (int, float)) and abs(value) > _MAX_PRECISION:
            raise ValueError(f"{name} must be at most {_MAX_PRECISION}")
