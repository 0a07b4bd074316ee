"""Introspection in the shared suites' asserts, and a real server in a process of its own."""

from collections.abc import Iterator

import pytest

from tests.contract.llama_server import llama_server

pytest.register_assert_rewrite("tests.contract.engine_suite")


@pytest.fixture(scope="session")
def llama_url() -> Iterator[str]:
    """Base URL of llama.cpp's own HTTP server with SmolLM2, running until the session ends."""
    with llama_server() as url:
        yield url
