"""The main job, small: real BFCL tasks on the real embedded model, token for token."""

import math

import pytest

import rolloutkit as rk
from rolloutkit.admission import AdmissionLimits
from rolloutkit.engines.llamacpp import LlamaCppConfig, LlamaCppEngine
from rolloutkit.limits import Limits
from rolloutkit.record.events import ModelCall
from rolloutkit.record.recorder import Recorder
from rolloutkit.render import Tokenizer
from rolloutkit.types import Status, StopReason
from rolloutkit_bfcl import BfclConfig, BfclEnvironment

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(120)]


class SentPrompts(LlamaCppEngine):
    """The embedded engine, and a copy of each prompt that was sent to it."""

    def __init__(self, config):
        super().__init__(config)
        self.prompts = []

    async def generate(self, request, on_progress=None):
        self.prompts.append((request.sample_id, list(request.prompt.token_ids)))
        return await super().generate(request, on_progress)


def bfcl(**fields):
    return BfclEnvironment(
        BfclConfig(
            classes=("GorillaFileSystem",),
            limit=1,
            num_samples=2,
            max_steps_per_turn=3,
            tool_documents="compact",
            **fields,
        )
    )


def run(*, constrain_calls, max_context=2048):
    engine = SentPrompts(LlamaCppConfig(num_slots=2, context_tokens=max_context))
    environment = bfcl()
    events = []
    trajectories = rk.run(
        environment.tasks(),
        engine=engine,
        environment=environment,
        settings=rk.Settings(
            admission=AdmissionLimits(max_samples=2),
            sampling=rk.SamplingParams(max_tokens=16),
            limits=Limits(max_turns=3),
            constrain_calls=constrain_calls,
        ),
        recorder=Recorder([events.append]),
    )
    return engine, trajectories, events


def test_what_was_sampled_is_what_is_kept():
    engine, trajectories, events = run(constrain_calls=False)

    tokenizer = Tokenizer.load(engine.model_file)
    for trajectory in trajectories:
        chain = trajectory.chains[0]
        ids = list(chain.token_ids)
        assert trajectory.status is Status.COMPLETED
        assert trajectory.token_exact
        assert chain.is_trainable
        prompts = [sent for sample_id, sent in engine.prompts if sample_id == trajectory.sample_id]
        assert all(ids[: len(prompt)] == prompt for prompt in prompts)
        assert [len(prompt) for prompt in prompts] == sorted({len(prompt) for prompt in prompts})
        for sampled, logprob in zip(chain.sampled_mask, chain.logprobs, strict=True):
            assert math.isfinite(logprob)
            assert logprob <= 0 if sampled else logprob == 0
        assert sum(chain.sampled_mask) == trajectory.output_tokens
        text = tokenizer.decode(ids)
        assert text.startswith("<|im_start|>system\nYou complete the user's requests")
        assert text.count("<|im_start|>assistant") == trajectory.num_turns
    calls = [event for event in events if isinstance(event, ModelCall)]
    later = [call for call in calls if call.turn > 0]
    assert all(call.cached_tokens >= call.context_tokens - call.new_tokens - 2 for call in later)


def test_constrained_calls_are_executed_and_mark_the_chain():
    _, trajectories, _ = run(constrain_calls=True)

    assert all(not trajectory.chains[0].is_trainable for trajectory in trajectories)
    assert sum(trajectory.score_details["calls"] for trajectory in trajectories) >= 1
    tools = [m for t in trajectories for m in t.messages if m["role"] == "tool"]
    calls = [c for t in trajectories for m in t.messages for c in m.get("tool_calls", ())]
    assert {message["tool_call_id"] for message in tools} <= {call["id"] for call in calls}


def test_a_context_that_no_longer_fits_ends_the_sample_as_context_full():
    _, trajectories, _ = run(constrain_calls=True, max_context=512)

    assert {trajectory.stop_reason for trajectory in trajectories} == {StopReason.CONTEXT_FULL}
    assert {trajectory.status for trajectory in trajectories} == {Status.COMPLETED}
