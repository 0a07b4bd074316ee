"""Records turns on a real server, one after the other.

    python -m tests.fidelity.record sglang http://127.0.0.1:PORT OUT.json.gz [name=value ...]

The named values say how the server was started (`max_total_tokens`, `page_size`, ...); they are
kept for whoever simulates it. Flush or restart the server before.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from tests.fidelity.turns import Answer, Recording, Script, Turn, prompt_of, write_recording

NUM_TURNS = 200
SEED = 7


class Server(NamedTuple):
    """How a server is asked, and what its scripts should look like."""

    ask: Callable[[str, array, Turn], Answer]
    scale: int = 1  # of all lengths
    has_aborts: bool = True  # whether it says what an aborted turn had said


def main(kind: str, url: str, path: Path, arguments: dict[str, int]) -> None:
    """Ask everything and write the recording."""
    server = SERVERS[kind]
    script = Script(SEED, scale=server.scale, has_aborts=server.has_aborts)
    turns: list[Turn] = []
    answers: list[Answer] = []
    contexts: list[array[int]] = []
    for index in range(NUM_TURNS):
        turn = script.next(turns, contexts)
        prompt = prompt_of(turn, contexts)
        answer = server.ask(url, prompt, turn)
        turns.append(turn)
        answers.append(answer)
        contexts.append(prompt + array("i", answer.output))
        print(index, len(prompt), answer.cached_tokens, len(answer.output), flush=True)
    write_recording(path, Recording(kind, arguments, turns, answers))


def ask_sglang(url: str, prompt: array, turn: Turn) -> Answer:
    """One turn through `/generate`; an abort is sent once enough tokens have come."""
    rid = f"turn-{len(prompt)}-{turn.seed}"
    body = {
        "rid": rid,
        "input_ids": prompt.tolist(),
        "sampling_params": {
            "max_new_tokens": turn.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        },
        "stream": turn.abort_after is not None,
    }
    if turn.abort_after is None:
        with post(f"{url}/generate", body) as reply:
            answer = json.load(reply)
    else:
        answer, is_aborted = {}, False
        with post(f"{url}/generate", body) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                answer = json.loads(line[len(b"data: ") :])
                if not is_aborted and len(answer["output_ids"]) >= turn.abort_after:
                    is_aborted = True
                    post(f"{url}/abort_request", {"rid": rid}).close()
        assert answer["meta_info"]["finish_reason"]["type"] == "abort", answer["meta_info"]
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"])
    return Answer(answer["meta_info"]["cached_tokens"], answer["output_ids"])


def post(url: str, body: dict):
    """Send JSON; the open reply."""
    data = json.dumps(body).encode()
    return urlopen(Request(url, data, {"content-type": "application/json"}), timeout=600)


def ask_vllm(url: str, prompt: array, turn: Turn) -> Answer:
    """One turn through `/v1/completions`; an abort would hide what it had said."""
    body = {
        "model": "smollm2",
        "prompt": prompt.tolist(),
        "max_tokens": turn.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    with post(f"{url}/v1/completions", body) as reply:
        answer = json.load(reply)
    details = answer["usage"]["prompt_tokens_details"] or {}
    return Answer(details.get("cached_tokens") or 0, answer["choices"][0]["token_ids"])


SERVERS = {
    "sglang": Server(ask_sglang),
    "vllm": Server(ask_vllm, has_aborts=False),
    # Long prompts of a tiny model: a block holds a whole state.
    "vllm_hybrid": Server(ask_vllm, scale=4, has_aborts=False),
}

if __name__ == "__main__":
    kind, url, path, *named = sys.argv[1:]
    values = dict(one.split("=") for one in named)
    main(kind, url, Path(path), {name: int(value) for name, value in values.items()})
