"""Token ids of SmolLM2 that the engine tests use, and its text."""

import json
import urllib.request

from rolloutkit.types import Completion
from tests.rendering import smollm2_tokenizer

END_OF_TURN = 2  # <|im_end|>
EMOJI_PARTS = (10813, 242, 218)  # three tokens of one character, no prefix of which is UTF-8
# Greedily answered with "Hello! How can I assist you today?" and the end of the turn.
GREETING = (1, 9690, 198, 2683, 359, 253, 5356, 5646, 2, 198, 1, 4093, 198, 19556, 2, 198)
GREETING += (1, 520, 9531, 198)


def text_of(completion: Completion) -> str:
    """What the completion says, without its end."""
    if completion.message is not None:
        return completion.message.content
    return smollm2_tokenizer().decode(list(completion.token_ids), skip_special_tokens=True)


def running_requests(server_url: str) -> int:
    """Requests that llama.cpp's server works on or has put off. Blocks."""
    with urllib.request.urlopen(f"{server_url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    names = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    return sum(int(float(line.split()[1])) for line in lines if line.startswith(names))


def completion_events(server_url: str, **fields: object) -> list[dict[str, object]]:
    """The events of one streamed `/completion`. Blocks."""
    body = json.dumps({"stream": True, "return_tokens": True, "n_probs": 1, **fields}).encode()
    request = urllib.request.Request(f"{server_url}/completion", body)
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = response.read().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
