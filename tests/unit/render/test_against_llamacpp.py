"""Our ids and schemas against the real llama.cpp, which has its own code for both."""

import json
import random
import socket
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import xllamacpp

from rolloutkit.assets import bundled_model
from rolloutkit.types import Message, ToolSpec
from tests.rendering import LOOK_UP, chatml, smollm2_tokenizer

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(120)]

Post = Callable[[str, dict[str, Any]], Any]

TOOLS: list[ToolSpec] = [
    LOOK_UP,
    {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "dict",
            "properties": {
                "a": {"type": "float"},
                "b": {"type": "float", "default": 0},
                "digits": {"type": "integer"},
                "how": {"type": "string", "enum": ["exact", "rounded"]},
                "notes": {"type": "array", "items": {"type": "any"}},
            },
            "required": ["a", "b"],
        },
    },
    {"name": "stop", "description": "Stops.", "parameters": {"type": "dict", "properties": {}}},
]


@pytest.fixture(scope="module")
def post() -> Post:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    params = xllamacpp.CommonParams()
    params.model.path = str(bundled_model().path)
    params.port, params.n_ctx, params.n_parallel, params.warmup = port, 2048, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)

    def send(path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    return send


def texts() -> list[str]:
    """Hand-picked and random texts: scripts, digits, code, white space, names of control tokens."""
    rng = random.Random(7)
    ranges = [(32, 127), (9, 14), (160, 0x800), (0x3000, 0xA000), (0x1F300, 0x1FB00)]
    noise = ["".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(30)) for _ in range(60)]
    return [
        "Hello, world!",
        "  leading and trailing  ",
        "a\n\n\nb \n\t\t\r\n",
        "1234567 12.5 x1y2 0x1F 1e-5 3,000.00 ١٢٣ ²³ Ⅷ",
        "naïve café 北京 👨‍👩‍👧 A\u0301e\u0308 \u00a0\u2003 ﷽ \U0010ffff \ufffd",
        "def f(x):\n\treturn x**2  # ok\n",
        "missing bytes \x04\x1d\U00040000",
        "it's I'LL don't we've",
        "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><file_sep>x<reponame>",
        *noise,
    ]


def test_ids_are_llamacpps(post: Post):
    tokenizer = smollm2_tokenizer()

    for text in texts():
        body = {"content": text, "add_special": False}
        with tokenizer.literal():
            assert post("/tokenize", {**body, "parse_special": False})[
                "tokens"
            ] == tokenizer.encode(text)
        assert post("/tokenize", {**body, "parse_special": True})["tokens"] == tokenizer.encode(
            text
        )


def test_rendered_prompt_is_llamacpps(post: Post):
    messages: list[Message] = [
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3+3?"},
    ]

    prompt = post("/apply-template", {"messages": messages})["prompt"]

    assert smollm2_tokenizer().encode(prompt) == chatml().start(messages, ())


@pytest.mark.parametrize("question", ["What is a sonnet?", "Add 17 and 25.", "Thanks, bye!"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_completion_is_read(post: Post, question: str, temperature: float):
    renderer = chatml()
    body = {
        "prompt": renderer.start([{"role": "user", "content": question}], TOOLS),
        "json_schema": renderer.call_schema(TOOLS),
        "n_predict": 100,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 1,
        "return_tokens": True,
    }

    reply = post("/completion", body)

    message = renderer.parse(reply["tokens"], TOOLS)
    if reply["stop_type"] == "eos":
        assert len(message.tool_calls) == 1 or message.content
        assert message.malformed_calls == ()
        assert {call.name for call in message.tool_calls} <= {tool["name"] for tool in TOOLS}
    else:
        assert message.tool_calls == ()
