import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.render import Tokenizer, make_renderer
from tests.rendering import family_tokenizer, smollm2_tokenizer


def test_auto_knows_smollm2_by_its_chat_template():
    renderer = make_renderer("auto", smollm2_tokenizer())

    assert type(renderer._renderer).__name__ == "ChatMLRenderer"


def test_auto_knows_the_librarys_models_by_name():
    backend = family_tokenizer("qwen3")._backend
    tokenizer = Tokenizer(backend, name_or_path="Qwen/Qwen3-4B")

    renderer = make_renderer("auto", tokenizer, {"enable_thinking": False})

    assert type(renderer._renderer).__name__ == "Qwen3Renderer"


def test_own_class_is_found_by_its_path():
    renderer = make_renderer("rolloutkit.render.chatml:ChatMLRenderer", smollm2_tokenizer())

    assert type(renderer._renderer).__name__ == "ChatMLRenderer"


@pytest.mark.parametrize("name", ["chatm", "default", ""])
def test_unknown_name_is_refused_with_the_names_there_are(name: str):
    with pytest.raises(ConfigError, match=r"chatml.*qwen3.*module:Class"):
        make_renderer(name, smollm2_tokenizer())


def test_auto_without_a_match_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match=r"'test/llama-3'; set renderer.name to one of chatml"):
        make_renderer("auto", family_tokenizer("llama-3"))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen3", {}),
        ("no_such_module:Class", {}),
        ("rolloutkit.types:Chain", {}),
        ("chatml", {"enable_thinking": True}),
    ],
)
def test_renderer_that_does_not_fit_is_refused_in_one_line(name: str, options: dict[str, object]):
    with pytest.raises(ConfigError, match=f"renderer '{name}' cannot be made") as caught:
        make_renderer(name, smollm2_tokenizer(), options)

    assert "\n" not in str(caught.value)


def test_bound_of_strings_reaches_the_schema():
    renderer = make_renderer("chatml", smollm2_tokenizer(), max_string_length=7)

    assert "'maxLength': 7" in str(renderer.call_schema([]))
