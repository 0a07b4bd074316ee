"""The simulated worker against what real servers had cached, turn after turn.

The recordings are of SGLang 0.5.23 and vLLM 0.32 on a CPU, with SmolLM2-135M and with a tiny hybrid
of Gated DeltaNet and attention, in pools so small that much is evicted; `tests.fidelity.record`
makes them. Branches, repeated and rewritten prompts and aborts are among the turns.
"""

from pathlib import Path

import msgspec
import pytest

from tests.fidelity.simulate import cached_tokens, rules_of
from tests.fidelity.turns import read_recording

DATA = Path(__file__).parent.parent / "data"

# How many of the 200 turns may differ: none, but where docs/simulation.md says why.
RECORDINGS = {"sglang": 0, "sglang_pages": 0, "sglang_small": 0, "vllm": 1, "vllm_hybrid": 0}


def recording_of(name):
    return read_recording(DATA / f"turns_{name}.json.gz")


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_same_tokens_are_cached_as_on_the_real_server(name):
    recording = recording_of(name)

    simulated = cached_tokens(recording, rules_of(recording))

    real = [answer.cached_tokens for answer in recording.answers]
    differing = [pair for pair in zip(simulated, real, strict=True) if pair[0] != pair[1]]
    assert len(real) == 200
    assert len(differing) <= RECORDINGS[name], differing


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recording_tells_a_pool_of_another_size_apart(name):
    recording = recording_of(name)
    rules = rules_of(recording)

    simulated = cached_tokens(
        recording, msgspec.structs.replace(rules, kv_tokens=2 * rules.kv_tokens)
    )

    real = [answer.cached_tokens for answer in recording.answers]
    assert sum(one != other for one, other in zip(simulated, real, strict=True)) >= 4


def test_sglang_recordings_hold_what_agents_do_to_a_cache():
    for name in ("sglang", "sglang_pages", "sglang_small"):
        recording = recording_of(name)
        aborted = [turn for turn in recording.turns if turn.abort_after is not None]
        asked_again = [turn for turn in recording.turns if turn.parent is None]
        assert len(aborted) > 10
        assert len(asked_again) > 10
        assert any(turn.keep and turn.new for turn in recording.turns)
