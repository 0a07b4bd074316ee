"""What every engine must do: the checks, and what a check needs to know about an engine.

A capability that an engine does not claim is skipped; nothing else is. An engine of your own passes
by being a `Subject` in a test like `test_engines_simulated.py`.
"""

import asyncio
import itertools
import math
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from rolloutkit.clock import Watchdog, now
from rolloutkit.errors import ContextFullError, LimitExceeded
from rolloutkit.protocols import CanContinue, Engine
from rolloutkit.types import (
    ChatPrompt,
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
)

Check = Callable[["Subject"], Awaitable[None]]

STOPPED_SECONDS = 8.0  # one batch of prefill and a second of polling, on a busy machine


_new_sample = (
    itertools.count()
)  # a sample's chain only grows, so that a new prompt is a new sample's


class Subject(NamedTuple):
    """An engine under test and what the suite must know of it."""

    engine: Engine
    num_running: Callable[[], Awaitable[int]]  # requests in the server
    text: Callable[[Completion], str]
    stop_token_ids: tuple[int, ...] = ()
    short_ids: tuple[int, ...] = ()  # a prompt whose greedy completion stops soon
    short_message: str = "Hello"  # the same for a chat
    cache_block: int = 1  # tokens; the cache keeps prefixes of whole blocks


def request_for(
    subject: Subject,
    index: int = 0,
    *,
    ids: tuple[int, ...] = (),
    message: str = "",
    sample_id: SampleId | None = None,
    turn: int = 0,
    schema: dict[str, Any] | None = None,
    **sampling: Any,
) -> GenerateRequest:
    """A request of a new sample; unless `ids` are given its prompt is the index's own."""
    if subject.engine.capabilities.token_ids:
        ids = ids or tuple(300 + (7 * index + 13 * k) % 20_000 for k in range(12 + index))
        prompt = TokenPrompt(array("i", ids), subject.stop_token_ids)
    else:
        message = message or f"Say the number {index}."
        prompt = ChatPrompt(({"role": "user", "content": message},))
    return GenerateRequest(
        sample_id=sample_id or SampleId("task", next(_new_sample)),
        attempt=0,
        chain_index=0,
        turn=turn,
        prompt=prompt,
        sampling=SamplingParams(**{"max_tokens": 6, "temperature": 0.0, **sampling}),
        json_schema=schema,
    )


def num_tokens(completion: Completion) -> int:
    """Tokens sampled; an engine under test has to know."""
    assert completion.num_tokens is not None
    return completion.num_tokens


async def until_idle(subject: Subject) -> None:
    """Wait until the server runs nothing; fails after `STOPPED_SECONDS`."""
    give_up_at = now() + STOPPED_SECONDS
    while await subject.num_running():
        assert now() < give_up_at, "the server still generates"
        await asyncio.sleep(0.02)


async def each_sampled_token_has_an_id_and_a_logprob(subject: Subject) -> None:
    capabilities = subject.engine.capabilities

    completion = await subject.engine.generate(request_for(subject, temperature=1.0, seed=1))

    assert num_tokens(completion) == completion.output_tokens
    assert 0 < num_tokens(completion) <= 6
    assert len(completion.token_ids) == (num_tokens(completion) if capabilities.token_ids else 0)
    if capabilities.logprobs:
        assert completion.logprobs is not None
        assert len(completion.logprobs) == len(completion.token_ids)
        assert all(math.isfinite(value) and value <= 0 for value in completion.logprobs)


async def logprobs_are_not_sent_when_they_are_not_wanted(subject: Subject) -> None:
    completion = await subject.engine.generate(request_for(subject, logprobs=False))

    assert completion.logprobs is None or subject.engine.capabilities.logprobs


async def a_continued_prompt_gives_the_same_greedy_tokens_and_logprobs(
    subject: Subject,
) -> None:
    if not subject.engine.capabilities.logprobs:
        pytest.skip("claims no log-probs")
    ids = tuple(range(500, 520))
    whole = await subject.engine.generate(request_for(subject, ids=ids))
    assert whole.logprobs is not None
    known = tuple(whole.token_ids[:3])

    rest = await subject.engine.generate(request_for(subject, ids=ids + known, max_tokens=3))

    assert rest.logprobs is not None
    assert list(rest.token_ids) == list(whole.token_ids[3:])
    assert list(rest.logprobs) == pytest.approx(list(whole.logprobs[3:]), abs=0.05)


async def a_completion_that_fills_max_tokens_ends_by_length(subject: Subject) -> None:
    completion = await subject.engine.generate(request_for(subject, max_tokens=2))

    assert completion.finish_reason is FinishReason.LENGTH
    assert num_tokens(completion) == 2


async def a_completion_that_ends_itself_ends_by_stop(subject: Subject) -> None:
    request = request_for(
        subject, ids=subject.short_ids, message=subject.short_message, max_tokens=64
    )

    completion = await subject.engine.generate(request)

    assert completion.finish_reason is FinishReason.STOP
    assert num_tokens(completion) < 64
    if subject.engine.capabilities.token_ids and subject.stop_token_ids:
        assert completion.token_ids[-1] in subject.stop_token_ids


async def the_same_seed_gives_the_same_completion(subject: Subject) -> None:
    if not subject.engine.capabilities.seeds:
        pytest.skip("claims no seeds")
    first, second = [
        await subject.engine.generate(request_for(subject, temperature=1.0, seed=7))
        for _ in range(2)
    ]

    assert list(first.token_ids) == list(second.token_ids)
    assert first.message == second.message


async def cancelling_stops_the_server(subject: Subject) -> None:
    started = asyncio.Event()
    request = request_for(subject, max_tokens=1_500, temperature=1.0, seed=3)
    job = asyncio.create_task(subject.engine.generate(request, lambda _: started.set()))
    await started.wait()

    job.cancel()

    with pytest.raises(asyncio.CancelledError):
        await job
    await until_idle(subject)


async def progress_grows_up_to_the_number_of_tokens(subject: Subject) -> None:
    if not subject.engine.capabilities.progress:
        pytest.skip("claims no progress")
    counts: list[int] = []

    completion = await subject.engine.generate(request_for(subject), counts.append)

    assert counts == sorted(counts)
    assert 0 < counts[-1] <= num_tokens(completion)


async def what_was_received_so_far_is_how_the_completion_begins(subject: Subject) -> None:
    engine = subject.engine
    if not isinstance(engine, CanContinue) or not engine.capabilities.token_ids:
        pytest.skip("cannot continue what it was about to say")
    request = request_for(subject)
    parts: list[list[int]] = []

    def look(_: int) -> None:
        received = engine.received(request)
        assert received is not None
        parts.append(list(received.token_ids))

    completion = await engine.generate(request, look)

    assert any(parts)
    assert all(part == list(completion.token_ids[: len(part)]) for part in parts)
    assert engine.received(request) is None


async def a_limit_ends_the_wait_and_leaves_the_engine_usable(subject: Subject) -> None:
    watchdog = Watchdog()
    slow = request_for(subject, max_tokens=1_500, temperature=1.0, seed=3)

    with pytest.raises(LimitExceeded), watchdog.limit("model_call", 0.2):
        await subject.engine.generate(slow)

    watchdog.close()
    completion = await subject.engine.generate(request_for(subject, 1))
    assert num_tokens(completion) > 0
    await until_idle(subject)


async def requests_at_once_get_their_own_answers(subject: Subject) -> None:
    requests = [request_for(subject, index, max_tokens=2) for index in range(8)]
    alone = [await subject.engine.generate(request) for request in requests]

    together = await asyncio.gather(*map(subject.engine.generate, requests))

    assert [answer.prompt_tokens for answer in together] == [one.prompt_tokens for one in alone]
    assert [answer.token_ids[:1] for answer in together] == [one.token_ids[:1] for one in alone]
    assert len({answer.prompt_tokens for answer in together}) > 1 or alone[0].message is not None


async def finish_may_be_called_again_and_for_strangers(subject: Subject) -> None:
    request = request_for(subject)
    await subject.engine.generate(request)

    for sample_id in (request.sample_id, request.sample_id, SampleId("stranger", 0)):
        subject.engine.finish(sample_id)

    completion = await subject.engine.generate(request)
    assert num_tokens(completion) > 0


async def the_second_turn_finds_the_first_in_the_cache(subject: Subject) -> None:
    capabilities = subject.engine.capabilities
    if not (capabilities.cached_tokens and capabilities.token_ids):
        pytest.skip("claims no prefix cache that ids can show")
    ids = tuple(range(900, 940))
    sample_id = SampleId("two turns", 0)
    first = await subject.engine.generate(request_for(subject, ids=ids, sample_id=sample_id))
    context = (*ids, *first.token_ids, 600, 601, 602)

    second = await subject.engine.generate(
        request_for(subject, ids=context, sample_id=sample_id, turn=1)
    )

    assert second.prompt_tokens == len(context)
    assert second.cached_tokens is not None
    in_blocks = len(ids) - len(ids) % subject.cache_block
    assert in_blocks <= second.cached_tokens < len(context)


async def a_schema_is_kept(subject: Subject) -> None:
    if not subject.engine.capabilities.grammar:
        pytest.skip("claims no grammar")
    request = request_for(subject, schema={"enum": ["yes"]}, max_tokens=16)

    completion = await subject.engine.generate(request)

    assert completion.constrained
    assert subject.text(completion).strip() == '"yes"'


async def a_prompt_beyond_the_context_is_context_full(subject: Subject) -> None:
    capabilities = subject.engine.capabilities
    if capabilities.max_context is None or not capabilities.token_ids:
        pytest.skip("claims no context length that ids can show")
    request = request_for(subject, ids=(300,) * (capabilities.max_context + 8))

    with pytest.raises(ContextFullError):
        await subject.engine.generate(request)


CHECKS: tuple[Check, ...] = (
    each_sampled_token_has_an_id_and_a_logprob,
    logprobs_are_not_sent_when_they_are_not_wanted,
    a_continued_prompt_gives_the_same_greedy_tokens_and_logprobs,
    a_completion_that_fills_max_tokens_ends_by_length,
    a_completion_that_ends_itself_ends_by_stop,
    the_same_seed_gives_the_same_completion,
    cancelling_stops_the_server,
    progress_grows_up_to_the_number_of_tokens,
    what_was_received_so_far_is_how_the_completion_begins,
    a_limit_ends_the_wait_and_leaves_the_engine_usable,
    requests_at_once_get_their_own_answers,
    finish_may_be_called_again_and_for_strangers,
    the_second_turn_finds_the_first_in_the_cache,
    a_schema_is_kept,
    a_prompt_beyond_the_context_is_context_full,
)
