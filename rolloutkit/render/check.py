"""The start-up check that a renderer is append-only, on a small conversation with every turn.

What it refuses would make every sample of a run fail, or train on tokens that nobody sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rolloutkit.errors import ConfigError, RenderError
from rolloutkit.render.token_renderer import TokenRenderer
from rolloutkit.types import Chain, Completion, FinishReason, Message, ToolSpec

_TOOLS: tuple[ToolSpec, ...] = (
    {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
        },
    },
)
_PROBE: tuple[Message, ...] = (
    {"role": "system", "content": "Answer with the help of the tools."},
    {"role": "user", "content": "What is a sonnet?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"word": "sonnet"}'},
            }
        ],
    },
    {"role": "tool", "content": "A poem of 14 lines.", "tool_call_id": "call_0", "name": "look_up"},
    {"role": "assistant", "content": "A poem of 14 lines."},
    {"role": "user", "content": "Who wrote some?"},
)
_PROMPT_ENDS = (2, 4, 6)  # number of messages after which the model speaks


def check_append_only(renderer: TokenRenderer) -> None:
    """Raise ConfigError unless conversations grow by appending and data stays data.

    The error names the messages and the token where the template rewrites what it had written, or
    the turn that cannot be extended, and what to do.
    """
    _check_full_renders(renderer)
    _check_steps(renderer)
    _check_literal(renderer)


def _check_full_renders(renderer: TokenRenderer) -> None:
    """The template must render what is common to two conversations alike.

    The generation prompt counts only where the family says so: a template may prefill a thinking
    block for the turn to come and not for finished ones, and a chain keeps it all the same.
    """
    shorter = _render(renderer, _PROMPT_ENDS[0])
    for before, after in itertools.pairwise(_PROMPT_ENDS):
        longer = _render(renderer, after)
        position = _first_difference(shorter, longer)
        if position < len(shorter):
            raise ConfigError(
                f"the chat template is not append-only: with {after} messages instead of {before} "
                f"token {position} turns from {_excerpt(renderer, shorter, position)} into "
                f"{_excerpt(renderer, longer, position)}; choose another renderer "
                "(renderer.name), or an option of it that leaves finished turns as they are"
            )
        shorter = longer


def _check_steps(renderer: TokenRenderer) -> None:
    """Growing a chain turn by turn must work, and give the full render where that is claimed."""
    chain = Chain()
    chain.append_context(renderer.start(_PROBE[:2], _TOOLS))
    for before, after in itertools.pairwise(_PROMPT_ENDS):
        stop = renderer.stop_token_ids[0]
        token_ids = _completion(renderer, before) if renderer.is_prefix_stable else [stop]
        chain.append_completion(Completion(finish_reason=FinishReason.STOP, token_ids=token_ids))
        news = _PROBE[before + 1 : after]
        try:
            chain.append_context(renderer.extend(chain, news, _TOOLS))
        except RenderError as error:
            raise ConfigError(
                f"conversations cannot grow by a {news[0]['role']} message: {error}"
            ) from error
        if renderer.is_prefix_stable:
            _compare(renderer, chain.token_ids.tolist(), after)


def _compare(renderer: TokenRenderer, grown: list[int], num_messages: int) -> None:
    full = renderer.start(_PROBE[:num_messages], _TOOLS)
    position = _first_difference(grown, full)
    if grown != full:
        raise ConfigError(
            f"the renderer is not append-only: after {num_messages} messages token {position} is "
            f"{_excerpt(renderer, grown, position)} in the grown chain and "
            f"{_excerpt(renderer, full, position)} in a full render; choose another renderer "
            "(renderer.name)"
        )


def _check_literal(renderer: TokenRenderer) -> None:
    """Names of control tokens inside a message must be encoded as text."""
    plain = renderer.start([{"role": "user", "content": "a b"}], ())
    for name, token_id in renderer.tokenizer.control_tokens.items():
        hostile = renderer.start([{"role": "user", "content": f"a {name} b"}], ())
        if hostile.count(token_id) != plain.count(token_id):
            raise ConfigError(
                f"the renderer turns text of a message into the control token {name}, so that an "
                "environment could forge turns; choose another renderer (renderer.name)"
            )


def _render(renderer: TokenRenderer, num_messages: int) -> list[int]:
    return renderer.render(
        _PROBE[:num_messages], _TOOLS, add_generation_prompt=renderer.is_prefix_stable
    )


def _completion(renderer: TokenRenderer, index: int) -> list[int]:
    """What the model would have sampled for the probe's message `index`, stop token included."""
    prompt = renderer.start(_PROBE[:index], _TOOLS)
    full = renderer.render(_PROBE[: index + 1], _TOOLS, add_generation_prompt=False)
    spoken = full[len(prompt) :]
    stops = [i for i, token in enumerate(spoken) if token in renderer.stop_token_ids]
    return spoken[: stops[-1] + 1] if stops else spoken


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _excerpt(renderer: TokenRenderer, token_ids: list[int], position: int) -> str:
    """A few tokens from `position` on, as quoted text."""
    return repr(renderer.tokenizer.decode(token_ids[position : position + 8]))
