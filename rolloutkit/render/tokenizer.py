"""Text to token ids and back, from a GGUF file or a `tokenizer.json`.

`Tokenizer` adapts `tokenizers.Tokenizer` to the surface that the `renderers` library expects of a
Hugging Face tokenizer. It keeps the model's chat template but leaves templates to the renderers.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.render.gguf_metadata import Metadata, Scalar, read_metadata

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_CONTROL, _USER_DEFINED = 3, 4  # token types of GGUF that are matched before the byte-pair merges


class _AddedToken(msgspec.Struct):
    content: str


class _Config(msgspec.Struct):
    """What is read of a `tokenizer_config.json`; some models list several templates by name."""

    eos_token: str | _AddedToken | None = None
    chat_template: str | list[Any] | dict[str, Any] | None = None


class OffsetEncoding(TypedDict):
    """Token ids with the half-open character span of each."""

    input_ids: list[int]
    offset_mapping: list[tuple[int, int]]


class Tokenizer:
    """A tokenizer with the surface of Hugging Face's that `renderers` uses.

    Bytes that the vocabulary lacks are left out, as the engines do: SmolLM2's lacks six control
    characters and U+40000 to U+BFFFF.
    While `literal()` is entered, names of control tokens are encoded as plain text: state that
    belongs to the one thread that renders.
    """

    unk_token_id: int | None = None  # byte-level vocabularies have none

    def __init__(
        self,
        backend: Backend,
        *,
        name_or_path: str,
        eos_token: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        self._backend = backend
        self.name_or_path = name_or_path
        self.eos_token_id = backend.token_to_id(eos_token) if eos_token else None
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self.control_tokens = {token.content: i for i, token in added.items() if token.special}
        names = sorted(map(re.escape, self.control_tokens), key=len, reverse=True)
        self._control_pattern = re.compile("|".join(names) if names else r"(?!)")

    @classmethod
    def load(cls, path: Path, *, name: str | None = None) -> Self:
        """Load a GGUF file, a `tokenizer.json`, or a directory that holds one.

        `name` is the model's public name, by which a renderer is found; the path when not given.
        """
        if path.suffix == ".gguf":
            return cls._from_gguf(path, name or str(path))
        return cls._from_json(path / "tokenizer.json" if path.is_dir() else path, name or str(path))

    @classmethod
    def _from_gguf(cls, path: Path, name: str) -> Self:
        metadata = read_metadata(path)
        kind = metadata.get("tokenizer.ggml.pre")
        if metadata.get("tokenizer.ggml.model") != "gpt2" or kind != "smollm":
            raise ConfigError(
                f"{path} has a tokenizer of kind {kind!r}, of a GGUF file only 'smollm' is known: "
                "give the path of the model's tokenizer.json"
            )
        tokens = _strings(metadata, "tokenizer.ggml.tokens")
        template = metadata.get("tokenizer.chat_template")
        return cls(
            _byte_level_bpe(
                tokens,
                _strings(metadata, "tokenizer.ggml.merges"),
                _list(metadata, "tokenizer.ggml.token_type"),
            ),
            name_or_path=name,
            eos_token=tokens[int(metadata["tokenizer.ggml.eos_token_id"])],  # type: ignore[arg-type]
            chat_template=template if isinstance(template, str) else None,
        )

    @classmethod
    def _from_json(cls, path: Path, name: str) -> Self:
        from tokenizers import Tokenizer as Backend

        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{path} is not a readable tokenizer.json: {error}") from error
        config = _read_config(path.with_name("tokenizer_config.json"))
        eos, template = config.eos_token, config.chat_template
        return cls(
            backend,
            name_or_path=name,
            eos_token=eos.content if isinstance(eos, _AddedToken) else eos,
            chat_template=template if isinstance(template, str) else None,
        )

    def encode(
        self, text: str, *_: object, add_special_tokens: bool = False, **__: object
    ) -> list[int]:
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def __call__(
        self, text: str, *_: object, add_special_tokens: bool = False, **__: object
    ) -> OffsetEncoding:
        encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}

    def decode(
        self,
        token_ids: int | Iterable[int],
        *_: object,
        skip_special_tokens: bool = False,
        **__: object,
    ) -> str:
        """Text of the ids; ids that the vocabulary does not have are left out."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or a list of ids; None for what the vocabulary does not have."""
        if isinstance(tokens, str):
            return self._backend.token_to_id(tokens)
        return [self._backend.token_to_id(token) for token in tokens]

    def names_control_token(self, text: str) -> bool:
        """Whether the text contains the name of a control token, such as `<|im_end|>`."""
        return self._control_pattern.search(text) is not None

    @contextmanager
    def literal(self) -> Generator[None]:
        """Encode names of control tokens as the characters they are."""
        self._backend.encode_special_tokens = True
        try:
            yield
        finally:
            self._backend.encode_special_tokens = False


def _read_config(path: Path) -> _Config:
    if not path.exists():
        return _Config()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Config)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): fetch the file again") from error


def _byte_level_bpe(tokens: list[str], merges: list[str], kinds: list[Scalar]) -> Backend:
    """What llama.cpp calls `smollm`: digits one by one, then GPT-2's byte-level BPE."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    backend.decoder = decoders.ByteLevel()
    by_kind = list(zip(tokens, kinds, strict=True))
    backend.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] # its stub: bare list
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in by_kind
            if kind == _CONTROL
        ]
    )
    backend.add_tokens(  # pyright: ignore[reportUnknownMemberType] # the same
        [AddedToken(token, normalized=False) for token, kind in by_kind if kind == _USER_DEFINED]
    )
    return backend


def _list(metadata: Metadata, key: str) -> list[Scalar]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise ConfigError(
            f"the GGUF file has no list {key}: it holds no tokenizer, choose another file"
        )
    return value


def _strings(metadata: Metadata, key: str) -> list[str]:
    return [str(item) for item in _list(metadata, key)]
