"""Takes what is private out of a trace, so that it can be shared.

Responses of environments are dropped unless they are asked for. In every other text, ids included,
each e-mail address, home folder and thing that looks like a key becomes a numbered placeholder, the
same one for the same text: what was different stays different. Sizes and times stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from rolloutkit.record.events import Action, Event

_EMAIL = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}"
_USER = r"(?:(?<=/home/)|(?<=/Users/)|(?<=\\Users\\))[^/\\\s\"':,;]+"
_PRIVATE_KEY = r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
_KEY = "|".join(
    (
        _PRIVATE_KEY,
        r"\bsk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic
        r"\bgh[oprsu]_[A-Za-z0-9]{20,}",
        r"\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"\bglpat-[A-Za-z0-9_-]{16,}",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
        r"\bAIza[A-Za-z0-9_-]{30,}",
        r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web token
        r"(?i:(?<=bearer ))[A-Za-z0-9._~+/-]{8,}=*",
        r"(?i:(?:(?<=api_key=)|(?<=apikey=)|(?<=token=)|(?<=secret=)|(?<=password=)))[^\s&\"',;]+",
        r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",  # user and password of a URL
    )
)
_PRIVATE = re.compile(f"(?P<key>{_KEY})|(?P<email>{_EMAIL})|(?P<user>{_USER})", re.DOTALL)


class Scrubber:
    """Replaces private texts; one instance for everything that is to stay consistent."""

    def __init__(self, *, keeps_responses: bool = False) -> None:
        self._keeps_responses = keeps_responses
        self._placeholders: dict[str, str] = {}

    @property
    def num_replaced(self) -> int:
        """Different private texts that were found."""
        return len(self._placeholders)

    def events(self, events: Iterable[Event]) -> Iterator[Event]:
        """The same events without what is private."""
        for event in events:
            drops = isinstance(event, Action) and event.responses and not self._keeps_responses
            kept = msgspec.structs.replace(event, responses=()) if drops else event
            yield msgspec.convert(self._clean(msgspec.to_builtins(kept)), Event)

    def text(self, text: str) -> str:
        """The text with placeholders."""
        return _PRIVATE.sub(self._placeholder, text)

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return {self.text(key): self._clean(inner) for key, inner in items}
        if isinstance(value, list | tuple):
            return [self._clean(inner) for inner in cast("list[Any]", value)]
        return value

    def _placeholder(self, match: re.Match[str]) -> str:
        found = match[0]
        if found not in self._placeholders:
            self._placeholders[found] = f"<{match.lastgroup}-{len(self._placeholders) + 1}>"
        return self._placeholders[found]
