import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit_bfcl.calls import WrittenCall, parse_calls

LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def test_a_list_of_calls_is_parsed() -> None:
    text = "[cd(folder='document'), grep('notes', pattern='x', n=-1, tags=[{'b': (1.5, None)}])]"

    assert parse_calls(text) == (
        WrittenCall("cd", (), {"folder": "document"}),
        WrittenCall("grep", ("notes",), {"pattern": "x", "n": -1, "tags": [{"b": (1.5, None)}]}),
    )


@pytest.mark.parametrize("text", ["ls()", "`[ls()]`", "```\n[ls()]\n```", " ls()\n"])
def test_brackets_are_optional_and_back_quotes_ignored(text: str) -> None:
    assert parse_calls(text) == (WrittenCall("ls", (), {}),)


def test_a_bare_name_is_read_as_a_string() -> None:
    assert parse_calls("[ls(a=true)]") == (WrittenCall("ls", (), {"a": "true"}),)


@pytest.mark.parametrize(
    "text",
    [
        "I have moved the file.",
        "done",
        "ls() and then cd()",
        "[ls(a=cd(folder='x'))]",  # nested
        "[cd(folder='a' * 10**9)]",
        "[ls(**{'a': 1})]",
        "[__import__('os').system('true')]",
        "[(lambda: 1)()]",
        "[ls(a={[]: 1})]",
        "[f(x='\\d')" + "(" * 5000,
        "[" * 5000,
    ],
)
def test_anything_else_is_no_call(text: str) -> None:
    assert not parse_calls(text)


@given(st.text(max_size=200))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    parse_calls(text)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), LITERALS))
def test_literals_survive_being_written_and_parsed(arguments: dict[str, object]) -> None:
    written = ", ".join(f"{name}={value!r}" for name, value in arguments.items())

    assert parse_calls(f"[f({written})]") == (WrittenCall("f", (), arguments),)
