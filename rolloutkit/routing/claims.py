"""What several workers can do together: what each of them can."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutkit.protocols import Capabilities

_NUMBERS = ("max_context", "parallelism")


def common_capabilities(all_of_them: Sequence[Capabilities]) -> Capabilities:
    """A claim holds where every worker makes it; the context is the shortest."""
    contexts = [one.max_context for one in all_of_them if one.max_context is not None]
    places = [one.parallelism for one in all_of_them if one.parallelism is not None]
    claims = [name for name in Capabilities.__struct_fields__ if name not in _NUMBERS]
    return Capabilities(
        **{name: all(getattr(one, name) for one in all_of_them) for name in claims},
        max_context=min(contexts, default=None),
        parallelism=sum(places) if len(places) == len(all_of_them) else None,
    )
