"""CPU of `extend` and `parse` per turn, against the length of the chain.

python -m pytest tests/benchmarks/bench_render_extend.py -s
"""

import time
from collections.abc import Callable

import pytest

from rolloutkit.types import Chain, Message
from tests.rendering import LOOK_UP, chatml, said

NUM_TURNS = 300


def chain_of(num_tokens: int) -> Chain:
    """Turns of 100 tokens of observation and 100 of completion, the last one open to `extend`."""
    renderer = chatml()
    completion = said(renderer, "word " * 99)
    observation = renderer.tokenizer.encode("word " * 100)
    chain = Chain()
    while len(chain) < num_tokens:
        chain.append_context(observation)
        chain.append_completion(completion)
    return chain


def cpu_us(call: Callable[[], object]) -> float:
    """Microseconds of CPU per call."""
    started_at = time.process_time()
    for _ in range(NUM_TURNS):
        call()
    return (time.process_time() - started_at) / NUM_TURNS * 1e6


@pytest.mark.slow
@pytest.mark.parametrize("num_tokens", [1_000, 10_000, 100_000])
def test_cpu_of_a_turn(num_tokens: int):
    renderer = chatml()
    chain = chain_of(num_tokens)
    observation: Message = {"role": "tool", "content": "word " * 97}
    call = said(renderer, '{"name":"look_up","arguments":{"word":"' + "ode " * 80 + '"}}').token_ids

    num_new = len(renderer.extend(chain, [observation], [LOOK_UP]))
    extend_us = cpu_us(lambda: renderer.extend(chain, [observation], [LOOK_UP]))
    parse_us = cpu_us(lambda: renderer.parse(call, [LOOK_UP]))

    print(
        f"\nchain of {len(chain):>7,} tokens: extend by {num_new} takes {extend_us:.0f} us of CPU, "
        f"parse of {len(call)} {parse_us:.0f} us"
    )
