"""Where `make servers` put the real servers, and how they are started."""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from rolloutkit.engines.launch import LaunchConfig

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SERVERS = Path(os.environ.get("ROLLOUTKIT_SERVERS", ROOT / ".servers"))
MODEL = SERVERS / "smollm2"

READY_SECONDS = 300.0  # it takes 25 to 40 on an idle machine of two cores


def launch(kind: str, *arguments: str, num_workers: int = 1, log_dir: str = "") -> LaunchConfig:
    """Servers of `kind` (sglang, vllm) with SmolLM2, one thread each."""
    environment = SERVERS / kind
    assert (environment / ".installed").exists(), f"{environment} is missing: run `make servers`"
    return LaunchConfig(
        command=(str(HERE / f"{kind}_cpu"), str(environment), str(MODEL), "{port}", *arguments),
        num_workers=num_workers,
        ready_seconds=READY_SECONDS,
        log_dir=log_dir,
    )


def asked(url: str) -> bytes:
    """The answer to a GET. Blocks."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read()


def posted(url: str, **fields: Any) -> dict[str, Any]:
    """The JSON answer to a POST of JSON. Blocks."""
    body = json.dumps(fields).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.loads(response.read())
