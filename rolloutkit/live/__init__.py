"""What a person sees while a run goes on."""

from __future__ import annotations

import asyncio

from rich.console import Console

from rolloutkit.clock import is_virtual
from rolloutkit.live.progress import Progress
from rolloutkit.live.state import Snapshot, look
from rolloutkit.live.views import LineView, QuietView, TableView
from rolloutkit.orchestrator import Orchestrator

__all__ = ["LineView", "Progress", "QuietView", "TableView", "make_view"]


def make_view(
    orchestrator: Orchestrator, progress: Progress, *, title: str, is_quiet: bool
) -> TableView | LineView | QuietView:
    """The view for where stderr leads. Called on the run's loop, as the run starts.

    In virtual time nothing is shown: a timer of the view's would be one of the run's.
    """
    console = Console(stderr=True)
    if is_quiet or is_virtual():
        return QuietView(console)
    time = asyncio.get_running_loop().time
    started_at = time()

    def look_now() -> Snapshot:
        return look(orchestrator, progress, time(), started_at)

    if console.is_terminal:
        return TableView(look_now, console, title)
    return LineView(look_now, console)
