"""A real OpenAI-compatible server in a process of its own, on `python llama_server.py [PORT]`.

It is the server that the llamacpp engine embeds: one machine without a GPU can play both sides.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def llama_server() -> Iterator[str]:
    """Start a server on a free port, give its URL, and end its process group on leaving."""
    server = subprocess.Popen(
        [sys.executable, __file__, "0"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url, "the server did not start: see its messages above"
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def main(port: int) -> None:
    from rolloutkit.engines.llamacpp import LlamaCppConfig, start_server

    server = start_server(LlamaCppConfig(context_tokens=2048), port)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8080)
