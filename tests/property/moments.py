"""Doing something at a moment of virtual time: after so many seconds and so many loop turns."""

import asyncio
from collections.abc import Callable


def at(moment: tuple[float, int], call: Callable[[], object]) -> None:
    """Call back `moment[0]` seconds from now and `moment[1]` turns of the loop after that."""
    seconds, num_turns = moment
    loop = asyncio.get_running_loop()

    def later(turns_left: int) -> None:
        if turns_left:
            loop.call_soon(later, turns_left - 1)
        else:
            call()

    loop.call_later(seconds, later, num_turns)
