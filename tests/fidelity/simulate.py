"""Asks the simulated worker what a real server was asked."""

from __future__ import annotations

from array import array

import msgspec

from rolloutkit.sim.sglang.request import Ending, Request
from rolloutkit.sim.sglang.rules import VLLM, StateRules, WorkerRules
from rolloutkit.sim.sglang.worker import Worker
from tests.fidelity.turns import Recording, prompt_of

STEP_SECONDS = 1.0


class UnitTimer:
    """Every batch takes as long as any other."""

    def decode(self, num_running, context_tokens):
        return STEP_SECONDS

    def prefill(self, num_tokens, attended):
        return STEP_SECONDS


def rules_of(recording: Recording) -> WorkerRules:
    """The rules of a server that was started so; sequential turns are the same without overlap."""
    arguments = recording.arguments
    rules = WorkerRules(
        kv_tokens=arguments["max_total_tokens"],
        page_tokens=arguments["page_size"],
        chunked_prefill_tokens=arguments["chunked_prefill_size"],
        max_running=arguments["max_running_requests"],
        max_context=arguments["context_length"],
        overlap=False,
    )
    if recording.server == "sglang":
        return rules
    block = rules.page_tokens  # vLLM's first one stays empty
    rules = msgspec.structs.replace(rules, kv_tokens=rules.kv_tokens - block, **VLLM)
    if "blocks_per_state" not in arguments:
        return rules
    unit = block * arguments["blocks_per_state"]
    states = StateRules(
        unit_tokens=unit,
        chunk_tokens=block,
        track_tokens=None,
        num_tracking=1,
        stops_at_branches=True,
        leaves_last=True,
    )
    return msgspec.structs.replace(rules, states=states)


def cached_tokens(recording: Recording, rules: WorkerRules) -> list[int]:
    """What the worker had cached of each prompt, turn after turn."""
    worker = Worker(rules, UnitTimer())
    contexts: list[array[int]] = []
    cached: list[int] = []
    now = 0.0
    for turn, answer in zip(recording.turns, recording.answers, strict=True):
        prompt = prompt_of(turn, contexts)
        output = array("i", answer.output)
        contexts.append(prompt + output)
        is_aborted = turn.abort_after is not None and len(output) > 2
        says = output + output if is_aborted else output  # it would have gone on
        request = Request(
            (prompt + says).tobytes(), len(prompt), max_new=turn.max_tokens, ends_by_length=True
        )
        worker.submit(request, now)
        while request.ending is None:
            assert worker.wakes_at is not None
            now = worker.wakes_at
            worker.advance(now)
            if is_aborted and request.num_generated == 1 and not request.is_aborted:
                now += (len(output) - 2.5) * STEP_SECONDS
                worker.abort(request, now)
        assert request.num_generated == len(output)
        assert request.ending is (Ending.ABORTED if is_aborted else Ending.DONE)
        assert request.num_cached is not None
        cached.append(request.num_cached)
        now += 1.0
    return cached
