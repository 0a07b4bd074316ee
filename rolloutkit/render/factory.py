"""From the name of a renderer in a config to a `TokenRenderer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rolloutkit.errors import ConfigError
from rolloutkit.render.calls import MAX_STRING_LENGTH
from rolloutkit.render.token_renderer import TokenRenderer

if TYPE_CHECKING:
    from renderers import Renderer

    from rolloutkit.render.tokenizer import Tokenizer

_OURS = "rolloutkit.render.chatml:ChatMLRenderer"


def make_renderer(
    name: str,
    tokenizer: Tokenizer,
    options: Mapping[str, object] | None = None,
    *,
    max_string_length: int | None = MAX_STRING_LENGTH,
) -> TokenRenderer:
    """Make the renderer that `name` says.

    `auto` goes by the tokenizer's chat template and model name, `chatml` is SmolLM2's,
    `module:Class` one's own; the rest are the `renderers` library's, without its `default`, which
    never appends to a finished turn. `options` are the renderer's own, such as `enable_thinking`.
    Raises ConfigError when the name or an option is unknown or the tokenizer does not fit.
    """
    try:
        renderer = _create(_resolve(name, tokenizer), tokenizer, options or {})
    except ConfigError:
        raise
    except Exception as error:
        # A foreign class may raise anything, and what it was given is the user's choice.
        reason = str(error).replace("\n", " ")
        raise ConfigError(f"renderer {name!r} cannot be made: {reason}") from error
    return TokenRenderer(renderer, tokenizer, max_string_length=max_string_length)


def _resolve(name: str, tokenizer: Tokenizer) -> str:
    families = _families()
    if name == "auto":
        from rolloutkit.render.chatml import TEMPLATE

        is_ours = tokenizer.chat_template == TEMPLATE
        name = "chatml" if is_ours else families.get(tokenizer.name_or_path, "")
        if not name:
            model = repr(tokenizer.name_or_path)
            raise ConfigError(f"no renderer is known for the model {model}; {_choices(families)}")
    if name == "chatml":
        return _OURS
    if ":" not in name and name not in families.values():
        raise ConfigError(f"unknown renderer {name!r}; {_choices(families)}")
    return name


def _create(name: str, tokenizer: Tokenizer, options: Mapping[str, object]) -> Renderer:
    from renderers import CustomRendererConfig, config_from_name, create_renderer

    if ":" in name:
        custom = CustomRendererConfig.model_validate({**options, "import_path": name})
        return create_renderer(tokenizer, custom)
    defaults = config_from_name(name)
    assert defaults is not None  # it is for `auto` alone
    config = type(defaults).model_validate({**options, "name": name})
    return create_renderer(tokenizer, config)


def _families() -> Mapping[str, str]:
    """The library's renderers, by the public names of the models that each is for."""
    # Our stub of the library is for its top level only.
    from renderers.base import MODEL_RENDERER_MAP  # pyright: ignore[reportMissingTypeStubs]

    return MODEL_RENDERER_MAP


def _choices(families: Mapping[str, str]) -> str:
    names = ", ".join(sorted({"chatml", *families.values()}))
    return f"set renderer.name to one of {names}, or to your own module:Class"
