"""Any server that speaks the OpenAI API: token ids where it takes and returns them, chat elsewhere.

Owns the choice between the two, made once at start-up by asking, and the claims that follow from
it. `completions` is token-exact: ids in, sampled ids with log-probs out (vLLM, llama.cpp's server).
`chat` sends messages and tools and gets text: such trajectories are not for trainers.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from enum import StrEnum
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self

import msgspec

from rolloutkit.engines.encoding import ChainEncodings
from rolloutkit.engines.http import HttpClient, RetryBudget
from rolloutkit.engines.openai_wire import (
    Answer,
    AnswerReader,
    Model,
    chat_fields,
    completion_fields,
    read_models,
)
from rolloutkit.errors import ConfigError, EngineError, RequestError
from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.types import (
    ChatPrompt,
    Completion,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
)

Count = Annotated[int, msgspec.Meta(ge=1)]


class Api(StrEnum):
    """Which of the two endpoints to use."""

    AUTO = "auto"  # completions if it gives token ids, else chat
    CHAT = "chat"
    COMPLETIONS = "completions"


class OpenAIConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server is and what to ask of it."""

    base_url: str  # up to and including `/v1`
    model: str = ""  # "" = the first that the server lists
    api: Api = Api.AUTO
    api_key_env: str = ""  # name of the environment variable that holds the key; "" = no key
    needs_logprobs: bool = False  # refuse to start when the endpoint gives none
    max_context: Count | None = None  # None = what the server says, if it does
    parallelism: Count | None = None  # requests it generates at once, for reports; None = unknown
    max_connections: Count = 1024
    max_tries: Count = 6
    retry_seconds: Annotated[float, msgspec.Meta(ge=0)] = 120.0  # per request, over all tries
    extra_body: dict[str, Any] = {}  # sent with every request
    seed: int = 0  # of the jitter between retries; sampling is seeded by each request


class OpenAIEngine:
    """Serves from `async with`, which asks the endpoint what it can do."""

    def __init__(self, config: OpenAIConfig, api_key: str = "") -> None:
        self._config = config
        self._client = HttpClient(
            config.base_url,
            max_connections=config.max_connections,
            retries=RetryBudget(max_tries=config.max_tries, max_seconds=config.retry_seconds),
            rng=random.Random(config.seed),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
        )
        self._encodings = ChainEncodings()
        self._model = config.model
        self._capabilities = Capabilities()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def __aenter__(self) -> Self:
        """Probe the endpoint. Raises ConfigError when it cannot be used as configured."""
        await self._client.__aenter__()
        try:
            await self._probe()
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """See `Engine.generate`. Always streams: else some servers overlook a closed connection."""
        path, body = self._encode(request)
        reader = AnswerReader(on_progress)
        answer = await self._client.post(path, body, reader.read)
        return answer.value.completion(request, answer.num_retries)

    def finish(self, sample_id: SampleId) -> None:
        """Forget the sample's encoded chains."""
        self._encodings.drop(sample_id)

    def _encode(self, request: GenerateRequest) -> _Encoded:
        options: dict[str, Any] = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            options |= chat_fields(request, prompt) | self._config.extra_body
            return _Encoded("/chat/completions", _encode_json(options))
        options |= completion_fields(request, prompt) | self._config.extra_body
        ids = self._encodings.ids(request, prompt.token_ids)
        body = b"".join((b'{"prompt":[', ids, b"],", _encode_json(options)[1:]))
        return _Encoded("/completions", body)

    async def _probe(self) -> None:
        try:
            models = (await self._client.get("/models", read_models, _PROBE_RETRIES)).value
            self._model = self._model or self._first_of(models)
            answer = await self._ask_for_tokens()
            is_chat = answer is None
            if answer is None:
                answer = await self._ask(_CHAT_PROBE, None)
            is_constrained = await self._honours_schema(_CHAT_PROBE if is_chat else _TOKEN_PROBE)
        except RequestError as error:
            raise ConfigError(str(error)) from error
        except EngineError as error:
            raise ConfigError(f"engine.base_url: {error}") from error
        has_logprobs = not is_chat and len(answer.logprobs) > 0
        if self._config.needs_logprobs and not has_logprobs:
            raise ConfigError(
                f"engine.base_url: {self._config.base_url} gives no log-probs of sampled tokens: "
                "use a server that does (vLLM, llama.cpp), or do without engine.needs_logprobs"
            )
        listed = next((model for model in models if model.id == self._model), None)
        self._capabilities = Capabilities(
            token_ids=not is_chat,
            logprobs=has_logprobs,
            grammar=is_constrained,
            progress=answer.is_streamed,
            cached_tokens=answer.cached_tokens is not None,
            max_context=self._config.max_context or (listed.max_context if listed else None),
            parallelism=self._config.parallelism,
        )

    def _first_of(self, models: Sequence[Model]) -> str:
        if not models:
            raise ConfigError(f"engine.model: {self._config.base_url} lists no model: name one")
        return models[0].id

    async def _ask_for_tokens(self) -> Answer | None:
        """An answer with token ids, or None for chat. Raises ConfigError if ids are a must."""
        if self._config.api is Api.CHAT:
            return None
        refusal = ""
        try:
            answer = await self._ask(_TOKEN_PROBE, None)
            if answer.token_ids:
                return answer
        except RequestError as error:
            refusal = f" ({error})"
        if self._config.api is Api.COMPLETIONS:
            raise ConfigError(
                f"engine.api: {self._config.base_url} does not take and return token ids{refusal}: "
                "use api=chat, whose trajectories are text only"
            )
        return None

    async def _honours_schema(self, prompt: TokenPrompt | ChatPrompt) -> bool:
        try:
            answer = await self._ask(prompt, {"enum": ["yes"]})
        except RequestError:
            return False
        return answer.text.strip() == '"yes"'

    async def _ask(self, prompt: TokenPrompt | ChatPrompt, schema: dict[str, Any] | None) -> Answer:
        request = GenerateRequest(
            sample_id=_PROBE_ID,
            attempt=0,
            chain_index=0,
            turn=0,
            prompt=prompt,
            sampling=SamplingParams(max_tokens=8, temperature=0.0),
            json_schema=schema,
        )
        path, body = self._encode(request)
        self._encodings.drop(_PROBE_ID)
        return (await self._client.post(path, body, AnswerReader().read, _PROBE_RETRIES)).value


class _Encoded(NamedTuple):
    path: str
    body: bytes


_encode_json = msgspec.json.encode
_PROBE_ID = SampleId("probe", 0)
_PROBE_RETRIES = RetryBudget(max_tries=3, max_seconds=10.0)  # somebody waits for a clear message
_TOKEN_PROBE = TokenPrompt(array("i", (10, 11, 12)))  # ids that every vocabulary has
_CHAT_PROBE = ChatPrompt(({"role": "user", "content": "Say yes."},))
