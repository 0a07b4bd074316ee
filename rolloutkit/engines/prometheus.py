"""Reads the text that servers show on `/metrics`: the samples of a few names, without the rest."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

# prometheus.io/docs/instrumenting/exposition_formats: NAME{LABEL="VALUE",...} NUMBER [TIME]
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One line: what is measured, of which part, and its value now."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_samples(text: str, names: Container[str]) -> Iterator[Sample]:
    """The samples whose name is among `names`, in the order of the text."""
    for name, labels, value in _SAMPLE.findall(text):
        if name in names:
            yield Sample(name, dict(_LABEL.findall(labels)), float(value))
