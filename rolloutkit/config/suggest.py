"""Did you mean? For messages about names that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'x'?` for the known name most like `name`, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {matches[0]!r}?" if matches else ""
