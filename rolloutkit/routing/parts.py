"""A completion in parts: a turn that was aborted for new weights and went on under them. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from rolloutkit.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    TokenPrompt,
    VersionSpan,
)


def stamped(completion: Completion, version: int | None) -> Completion:
    """The completion with its policy version, where the server did not say."""
    if completion.versions or version is None:
        return completion
    spans = (VersionSpan(version, 0, len(completion.token_ids)),)
    return msgspec.structs.replace(completion, versions=spans)


def can_go_on(request: GenerateRequest) -> bool:
    """Only token ids can: a text that was cut has other tokens when it is read again."""
    return isinstance(request.prompt, TokenPrompt)


def rest_of(request: GenerateRequest, parts: Sequence[Completion]) -> GenerateRequest | None:
    """The request for what is still to be sampled; None when nothing is."""
    prompt = request.prompt
    assert isinstance(prompt, TokenPrompt)
    num_done = sum(len(part.token_ids) for part in parts)
    num_left = request.sampling.max_tokens - num_done
    if num_left <= 0:
        return None
    if not num_done:
        return request
    token_ids = array("i", prompt.token_ids)
    for part in parts:
        token_ids.extend(part.token_ids)
    return msgspec.structs.replace(
        request,
        prompt=TokenPrompt(token_ids, prompt.stop_token_ids),
        sampling=msgspec.structs.replace(request.sampling, max_tokens=num_left),
    )


def joined(parts: Sequence[Completion]) -> Completion:
    """One completion of parts that follow each other. Times and retries add up; the prefix hit is
    the first one's.
    """
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return last
    token_ids = array("i")
    versions: list[VersionSpan] = []
    for part in parts:
        start = len(token_ids)
        token_ids.extend(part.token_ids)
        spans = part.versions or (VersionSpan(0, 0, len(part.token_ids)),)
        versions += [
            VersionSpan(span.version, start + span.start, start + span.end) for span in spans
        ]
    return msgspec.structs.replace(
        last,
        token_ids=token_ids,
        logprobs=_logprobs(parts),
        versions=tuple(versions),
        output_tokens=len(token_ids),
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        constrained=any(part.constrained for part in parts),
        num_retries=sum(part.num_retries for part in parts),
        queue_seconds=_sum([part.queue_seconds for part in parts]),
        prefill_seconds=_sum([part.prefill_seconds for part in parts]),
        service_seconds=_sum([part.service_seconds for part in parts]),
    )


def full(parts: Sequence[Completion]) -> Completion:
    """Of parts that fill the completion already: it ends by its length."""
    return msgspec.structs.replace(joined(parts), finish_reason=FinishReason.LENGTH)


def _logprobs(parts: Sequence[Completion]) -> array[float] | None:
    if any(part.logprobs is None and part.token_ids for part in parts):
        return None
    values = array("f")
    for part in parts:
        values.extend(part.logprobs or ())
    return values


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
