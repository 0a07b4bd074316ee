import struct
from pathlib import Path

import pytest

from rolloutkit.assets import bundled_model
from rolloutkit.errors import ConfigError
from rolloutkit.render.gguf_metadata import read_metadata


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(*pairs: bytes, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, 0, len(pairs)) + b"".join(pairs)


def test_scalars_strings_and_arrays_are_read_in_the_files_order(tmp_path: Path):
    path = tmp_path / "small.gguf"
    path.write_bytes(
        gguf(
            text("a.count") + struct.pack("<II", 4, 7),
            text("a.flag") + struct.pack("<I?", 7, True),
            text("a.name") + struct.pack("<I", 8) + text("köln"),
            text("a.rates") + struct.pack("<IIQff", 9, 6, 2, 0.5, -1.0),
            text("a.names") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text(""),
        )
    )

    metadata = read_metadata(path)

    assert list(metadata.items()) == [
        ("a.count", 7),
        ("a.flag", True),
        ("a.name", "köln"),
        ("a.rates", [0.5, -1.0]),
        ("a.names", ["x", ""]),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GGUF",
        b"not a model at all, only some text",
        gguf(version=99),
        gguf(text("key") + struct.pack("<I", 77)),
        gguf(text("key") + struct.pack("<IIQ", 9, 9, 1)),
        gguf(text("key") + struct.pack("<IQ", 8, 1000) + b"cut off"),
        gguf(text("key") + struct.pack("<IQ", 8, 2) + b"\xff\xff"),
    ],
)
def test_unreadable_file_is_a_config_error_that_names_it(tmp_path: Path, content: bytes):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"broken\.gguf is not a readable GGUF file"):
        read_metadata(path)


def test_missing_file_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="fetch the model again"):
        read_metadata(tmp_path / "absent.gguf")


def test_bundled_model_has_the_expected_vocabulary():
    metadata = read_metadata(bundled_model().path)

    assert metadata["general.architecture"] == "llama"
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == 49_152
