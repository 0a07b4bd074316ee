"""Writes `report.html`: one file that needs no network and shows a run, or compares several.

The page is a template with its style, its script and the content as JSON inside. Nothing of a run
is ever markup: JSON is escaped here, and the script writes text only. The page's own policy allows
this one script and no request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template

import msgspec

from rolloutkit.record.events import Event
from rolloutkit.report.page import build_page
from rolloutkit.report.summary import Summary

_SCRIPTS = ("elements.js", "gantt.js", "charts.js", "page.js")
# Inside a script element these would end it, open another or start a comment.
_ESCAPES = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"))


def write_html(events: Iterable[Event], summary: Summary, path: Path) -> None:
    """Write the page of one run, `summary` being that of `events`. Raises OSError."""
    write_page(build_page(events, summary), path)


def write_page(content: msgspec.Struct, path: Path) -> None:
    """Write `content` as a page; equal contents give equal bytes. Raises OSError."""
    script = "".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Template(_asset("page.html")).substitute(
        style=_asset("page.css"), script=script, script_hash=digest, content=_embed(content)
    )
    path.write_text(page, encoding="utf-8", newline="\n")


def _embed(content: msgspec.Struct) -> str:
    """JSON that may stand inside a script element, whatever the texts in it."""
    encoded = msgspec.json.encode(content)
    for raw, escaped in _ESCAPES:
        encoded = encoded.replace(raw, escaped)
    return encoded.decode()


def _asset(name: str) -> str:
    return resources.files("rolloutkit.report").joinpath("assets", name).read_text("utf-8")
