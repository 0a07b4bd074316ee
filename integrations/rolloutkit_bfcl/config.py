"""The knobs of the BFCL environment."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rolloutkit_bfcl.documents import ToolDocuments


class BfclConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to play, and how. The defaults are the official ones."""

    categories: tuple[str, ...] = ("multi_turn_base",)
    classes: tuple[str, ...] = ()  # only tasks that involve no other class; () = all tasks
    ids: tuple[str, ...] = ()  # only these tasks; () = all
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None  # the first so many of those left
    num_samples: Annotated[int, msgspec.Meta(ge=1)] = 1  # of each task
    max_steps_per_turn: Annotated[int, msgspec.Meta(ge=1)] = 21  # as officially
    tool_documents: ToolDocuments = ToolDocuments.FULL
    system_prompt: str | None = None  # `{functions}` stands for the compact signatures
