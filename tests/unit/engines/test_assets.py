import threading
from pathlib import Path

import gguf
import numpy as np
import pytest

from rolloutkit.assets import (
    BUNDLED_SHA256,
    ModelFile,
    Quantization,
    bundled_model,
    checked_model,
    prepared_model,
)
from rolloutkit.errors import ConfigError

TOKENS = [
    "<s>",
    "a",
    "\u0120b",
    "\u00f0\u0141",
    "a\u00e2",
    "\u00c3\u00a9",
]  # 3, 4: part of a character


@pytest.fixture
def source(tmp_path: Path) -> ModelFile:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 1, 1, 1, 1, 1])
    rng = np.random.default_rng(0)
    writer.add_tensor("matrix", rng.normal(size=(4, 64)).astype(np.float32))
    writer.add_tensor("narrow", rng.normal(size=(4, 24)).astype(np.float32))
    writer.add_tensor("norm", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return checked_model(path)


def test_the_bundled_model_is_the_known_file() -> None:
    assert bundled_model().sha256 == BUNDLED_SHA256


def test_a_wrong_sha256_is_a_config_error(source: ModelFile) -> None:
    with pytest.raises(ConfigError, match=f"has sha256 {source.sha256}, expected 00"):
        checked_model(source.path, "00")


def test_the_right_sha256_may_be_written_in_capitals(source: ModelFile) -> None:
    assert checked_model(source.path, source.sha256.upper()) == source


def test_matrices_are_requantised_and_the_rest_is_kept(source: ModelFile, tmp_path: Path) -> None:
    prepared = prepared_model(source, Quantization.Q8_0, tmp_path / "cache")

    reader, original = gguf.GGUFReader(prepared.path), gguf.GGUFReader(source.path)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds == {"matrix": "Q8_0", "narrow": "F32", "norm": "F32"}
    matrix = reader.tensors[0]
    restored = gguf.dequantize(matrix.data, matrix.tensor_type)
    np.testing.assert_allclose(restored, original.tensors[0].data, atol=0.02)
    assert reader.fields["tokenizer.ggml.tokens"].contents() == TOKENS
    assert reader.fields["general.file_type"].contents() == 7


@pytest.mark.parametrize("quantization", [Quantization.Q8_0, Quantization.AS_IS])
def test_parts_of_characters_are_marked_as_textless(
    source: ModelFile, tmp_path: Path, quantization: Quantization
) -> None:
    prepared = prepared_model(source, quantization, tmp_path / "cache")

    types = gguf.GGUFReader(prepared.path).fields["tokenizer.ggml.token_type"].contents()
    assert types == [3, 1, 1, 5, 5, 1]


def test_the_source_is_never_written(source: ModelFile, tmp_path: Path) -> None:
    prepared_model(source, Quantization.AS_IS, tmp_path / "cache")

    assert checked_model(source.path) == source


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100])
def test_a_file_that_is_no_model_is_a_config_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match="no GGUF model"):
        prepared_model(checked_model(path), Quantization.AS_IS, tmp_path / "cache")

    assert list((tmp_path / "cache").iterdir()) == []


def test_a_prepared_model_is_reused_and_written_again_when_damaged(
    source: ModelFile, tmp_path: Path
) -> None:
    first = prepared_model(source, Quantization.Q8_0, tmp_path / "cache")
    written_at = first.path.stat().st_mtime_ns
    assert prepared_model(source, Quantization.Q8_0, tmp_path / "cache") == first
    assert first.path.stat().st_mtime_ns == written_at

    first.path.write_bytes(b"damaged")

    assert prepared_model(source, Quantization.Q8_0, tmp_path / "cache") == first


def test_preparing_twice_at_once_leaves_one_whole_copy(source: ModelFile, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found: list[ModelFile] = []

    def prepare() -> None:
        found.append(prepared_model(source, Quantization.Q4_0, cache))

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == 1
    assert len(list(cache.iterdir())) == 1
