import json
import struct
from pathlib import Path

import pytest
from renderers import Tokenizer as RenderersTokenizer
from renderers.base import OffsetTokenizer

from rolloutkit.errors import ConfigError
from rolloutkit.render import Tokenizer
from tests.rendering import smollm2_tokenizer
from tests.unit.render.test_gguf_metadata import gguf, text


def test_surface_is_what_the_library_expects():
    assert isinstance(smollm2_tokenizer(), RenderersTokenizer)
    assert isinstance(smollm2_tokenizer(), OffsetTokenizer)


def test_text_survives_encoding_and_decoding():
    tokenizer = smollm2_tokenizer()
    original = "naïve 北京 👩‍👩‍👧 1234\n\n\tdef f(x): return x**2 <|im_end|>"

    assert tokenizer.decode(tokenizer.encode(original)) == original


def test_names_of_control_tokens_are_plain_text_inside_literal():
    tokenizer = smollm2_tokenizer()

    with tokenizer.literal():
        literal = tokenizer.encode("a<|im_end|>b")

    assert tokenizer.control_tokens["<|im_end|>"] not in literal
    assert tokenizer.decode(literal) == "a<|im_end|>b"
    assert tokenizer.encode("a<|im_end|>b")[1] == tokenizer.control_tokens["<|im_end|>"]


def test_literal_ends_when_its_body_raises():
    tokenizer = smollm2_tokenizer()

    with pytest.raises(ZeroDivisionError), tokenizer.literal():
        raise ZeroDivisionError

    assert tokenizer.encode("<|im_end|>") == [tokenizer.control_tokens["<|im_end|>"]]


def test_tokens_become_ids_and_unknown_ones_none():
    tokenizer = smollm2_tokenizer()

    assert tokenizer.convert_tokens_to_ids("<|im_start|>") == 1
    assert tokenizer.convert_tokens_to_ids(["<|im_end|>", "<no such token>"]) == [2, None]
    assert tokenizer.eos_token_id == 2


def test_offsets_cover_the_text():
    encoding = smollm2_tokenizer()("Hello there", return_offsets_mapping=True)

    assert encoding["offset_mapping"][0][0] == 0
    assert encoding["offset_mapping"][-1][1] == len("Hello there")
    assert len(encoding["offset_mapping"]) == len(encoding["input_ids"])


def test_single_id_and_ids_outside_the_vocabulary_decode():
    tokenizer = smollm2_tokenizer()

    assert tokenizer.decode(2) == "<|im_end|>"
    assert tokenizer.decode(2, skip_special_tokens=True) == ""
    assert tokenizer.decode([49_152, 2**31 - 1]) == ""


def test_tokenizer_json_gives_the_same_ids_as_the_gguf_file(tmp_path: Path):
    original = smollm2_tokenizer()
    original._backend.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    loaded = Tokenizer.load(tmp_path, name="org/model")

    assert loaded.encode("Hello <|im_end|> 42") == original.encode("Hello <|im_end|> 42")
    assert loaded.eos_token_id == original.eos_token_id
    assert loaded.chat_template == "{{ messages }}"
    assert loaded.name_or_path == "org/model"


def test_tokenizer_json_alone_has_no_end_token_and_no_template(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    smollm2_tokenizer()._backend.save(str(path))

    loaded = Tokenizer.load(path)

    assert loaded.eos_token_id is None
    assert loaded.chat_template is None
    assert loaded.name_or_path == str(path)


def test_broken_tokenizer_json_is_a_config_error(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")

    with pytest.raises(ConfigError, match=r"not a readable tokenizer\.json"):
        Tokenizer.load(path)


def test_broken_tokenizer_config_is_a_config_error(tmp_path: Path):
    smollm2_tokenizer()._backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[1, ")

    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        Tokenizer.load(tmp_path)


def test_gguf_with_another_kind_of_tokenizer_is_refused(tmp_path: Path):
    path = tmp_path / "other.gguf"
    path.write_bytes(
        gguf(
            text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2"),
            text("tokenizer.ggml.pre") + struct.pack("<I", 8) + text("qwen2"),
        )
    )

    with pytest.raises(ConfigError, match=r"'qwen2'.*tokenizer\.json"):
        Tokenizer.load(path)


def test_gguf_without_tokens_is_refused(tmp_path: Path):
    path = tmp_path / "headless.gguf"
    path.write_bytes(
        gguf(
            text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gpt2"),
            text("tokenizer.ggml.pre") + struct.pack("<I", 8) + text("smollm"),
        )
    )

    with pytest.raises(ConfigError, match=r"no list tokenizer\.ggml\.tokens"):
        Tokenizer.load(path)
