"""What every test gets: virtual time, unless it is marked `real_time`, and a hypothesis profile."""

import asyncio
import os
from collections.abc import Callable, Mapping

import hypothesis
import pytest

from rolloutkit.clock import VirtualTimeLoop

# Deadlines measure the wall clock of a shared machine: pytest-timeout bounds a test instead.
hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time"):
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualTimeLoop}
