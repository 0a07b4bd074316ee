"""The OpenAI API on the wire: what requests say, and how answers become completions.

Owns the field names of the dialects that engines speak beside it: vLLM returns `token_ids` when
asked, llama.cpp's server an `id` with each log-prob. It knows neither connections nor retries.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from rolloutkit.engines.http import refusal, sse_events
from rolloutkit.engines.timings import Timings
from rolloutkit.errors import EngineError
from rolloutkit.protocols import OnProgress
from rolloutkit.types import (
    AssistantMessage,
    ChatPrompt,
    Completion,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    TokenPrompt,
    ToolCall,
)


def completion_fields(request: GenerateRequest, prompt: TokenPrompt) -> dict[str, Any]:
    """The body of a `/completions` request, but for its prompt. Servers ignore unknown fields."""
    sampling = request.sampling
    fields = _sampling_fields(sampling) | {
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "logprobs": 1,  # where the dialect puts the ids
        "return_token_ids": True,  # vLLM
    }
    if prompt.stop_token_ids:
        fields["stop_token_ids"] = prompt.stop_token_ids  # vLLM
    if request.json_schema is not None:
        fields["json_schema"] = request.json_schema  # llama.cpp
        fields["structured_outputs"] = {"json": request.json_schema}  # vLLM
    return fields


def chat_fields(request: GenerateRequest, prompt: ChatPrompt) -> dict[str, Any]:
    """The body of a `/chat/completions` request.

    `top_k` and `min_p` are not part of the API, so that they are sent only when they are in use.
    """
    sampling = request.sampling
    fields = _sampling_fields(sampling) | {"messages": prompt.messages}
    if sampling.top_k:
        fields["top_k"] = sampling.top_k
    if sampling.min_p:
        fields["min_p"] = sampling.min_p
    if prompt.tools:
        fields["tools"] = [{"type": "function", "function": tool} for tool in prompt.tools]
    if request.json_schema is not None:
        schema = {"name": "completion", "schema": request.json_schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields


class _TokenLogprob(msgspec.Struct, frozen=True):
    logprob: float
    id: int | None = None  # llama.cpp


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[_TokenLogprob] | None = None  # chat, and llama.cpp everywhere
    token_logprobs: list[float] | None = None  # completions elsewhere


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int | None = None  # in streams, where a call comes in parts
    id: str | None = None
    function: _Function = _Function()


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, frozen=True):
    """A whole answer, or one event of a stream."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: Timings | None = None  # llama.cpp
    error: Any = None


class _ModelMeta(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class Model(msgspec.Struct, frozen=True):
    """One of the models that a server lists."""

    id: str
    max_model_len: int | None = None  # vLLM, SGLang
    meta: _ModelMeta | None = None  # llama.cpp

    @property
    def max_context(self) -> int | None:
        return self.max_model_len or (self.meta.n_ctx if self.meta is not None else None)


class _Models(msgspec.Struct, frozen=True):
    data: list[Model] = []


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_models = msgspec.json.Decoder(_Models).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


async def read_models(response: aiohttp.ClientResponse) -> list[Model]:
    """Read the answer to `GET /models`."""
    return _decode_models(await response.read()).data


class AnswerReader:
    """Reads one answer, streamed or whole; each try starts from nothing."""

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self._on_progress = on_progress

    async def read(self, response: aiohttp.ClientResponse) -> Answer:
        answer = Answer()
        if response.content_type != "text/event-stream":
            answer.add(_decode_chunk(await response.read()))
        else:
            answer.is_streamed = True
            async for event in sse_events(response):
                answer.add(_decode_chunk(event))
                if self._on_progress is not None:
                    self._on_progress(answer.num_tokens)
        if not answer.finish_reason:
            raise aiohttp.ClientPayloadError("the answer ended early")
        return answer


class Answer:
    """What one request brought, put together from its parts."""

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.logprobs = array("f")
        self._texts: list[str] = []
        self.finish_reason = ""
        self.is_streamed = False
        self._calls: list[_PartialCall] = []
        self._usage = _Usage()
        self._timings = Timings()

    @property
    def num_tokens(self) -> int:
        """Tokens so far; in a chat, which has no ids, the pieces of text that came."""
        return len(self.token_ids) or len(self._texts)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def cached_tokens(self) -> int | None:
        details = self._usage.prompt_tokens_details
        return None if details is None else details.cached_tokens

    def add(self, chunk: _Chunk) -> None:
        """Append an event of the stream, or the whole answer."""
        if chunk.error is not None:
            raise _failure(chunk.error)
        for choice in chunk.choices:  # there is one, or none beside the usage
            self._add_tokens(choice)
            message = choice.message or choice.delta
            text = choice.text if message is None else message.content
            if text:
                self._texts.append(text)
            if message is not None:
                for call in message.tool_calls or ():
                    self._add_call(call)
            self.finish_reason = choice.finish_reason or self.finish_reason
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings

    def completion(self, request: GenerateRequest, num_retries: int) -> Completion:
        """The completion; with ids for a token prompt, with a message for a chat.

        Raises EngineError when the server kept back ids or log-probs of tokens that it sampled.
        """
        usage, timings = self._usage, self._timings
        finish_reason = _FINISH_REASONS.get(self.finish_reason, FinishReason.STOP)
        prompt = request.prompt
        is_chat = isinstance(prompt, ChatPrompt)
        if isinstance(prompt, TokenPrompt):
            self._check_tokens()
            if self._cut_at(prompt.stop_token_ids):
                finish_reason = FinishReason.STOP
        return Completion(
            finish_reason=finish_reason,
            token_ids=self.token_ids,
            logprobs=self.logprobs if self.logprobs and request.sampling.logprobs else None,
            message=self._message() if is_chat else None,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=usage.completion_tokens if is_chat else len(self.token_ids),
            constrained=request.json_schema is not None,
            prefill_seconds=timings.prefill_seconds,
            service_seconds=timings.service_seconds,
            num_retries=num_retries,
        )

    def _add_tokens(self, choice: _Choice) -> None:
        logprobs = choice.logprobs
        if choice.token_ids is not None:
            self.token_ids.extend(choice.token_ids)
            if logprobs is not None and logprobs.token_logprobs is not None:
                self.logprobs.extend(logprobs.token_logprobs)
        elif logprobs is not None:
            for token in logprobs.content or ():
                if token.id is not None:
                    self.token_ids.append(token.id)
                    self.logprobs.append(token.logprob)

    def _add_call(self, part: _Call) -> None:
        index = len(self._calls) if part.index is None else part.index
        while index >= len(self._calls):
            self._calls.append(_PartialCall())
        call = self._calls[index]
        call.call_id = part.id or call.call_id
        call.name += part.function.name or ""
        call.arguments += part.function.arguments or ""

    def _check_tokens(self) -> None:
        count, expected = len(self.token_ids), self._usage.completion_tokens
        if expected is not None and count != expected:
            raise EngineError(f"the server gave the ids of {count} of {expected} sampled tokens")
        if self.logprobs and len(self.logprobs) != count:
            raise EngineError(f"the server gave {len(self.logprobs)} log-probs of {count} tokens")

    def _cut_at(self, stop_token_ids: Sequence[int]) -> bool:
        """End at the first stop token, for servers that do not know it. Whether it did."""
        for index, token_id in enumerate(self.token_ids):
            if token_id in stop_token_ids:
                del self.token_ids[index + 1 :], self.logprobs[index + 1 :]
                return True
        return False

    def _message(self) -> AssistantMessage:
        calls: list[ToolCall] = []
        malformed: list[str] = []
        for call in self._calls:
            try:
                arguments = _decode_object(call.arguments or "{}")
            except msgspec.DecodeError:
                malformed.append(f"{call.name}({call.arguments})")
            else:
                calls.append(ToolCall(call.name, arguments, call.call_id))
        return AssistantMessage(self.text, tuple(calls), tuple(malformed))


def _failure(error: Any) -> EngineError:
    """What an error in mid-stream means: vLLM refuses requests there too."""
    try:
        refused = msgspec.convert(error, _Refusal)
    except msgspec.ValidationError:
        refused = _Refusal("", 0)
    if 400 <= refused.code < 500:
        return refusal("the server", refused.code, refused.message)
    return EngineError(f"the server broke off: {str(error)[:200]}")


class _Refusal(msgspec.Struct, frozen=True):
    message: str
    code: int


class _PartialCall:
    def __init__(self) -> None:
        self.call_id = self.name = self.arguments = ""


_FINISH_REASONS = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}  # others: stop
