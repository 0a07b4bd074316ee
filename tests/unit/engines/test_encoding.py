from array import array

import pytest

from rolloutkit.engines.encoding import ChainEncodings
from rolloutkit.types import GenerateRequest, SampleId, SamplingParams, TokenPrompt


def request_for(ids: "array[int]", attempt: int = 0) -> GenerateRequest:
    return GenerateRequest(
        sample_id=SampleId("t", 0),
        attempt=attempt,
        chain_index=0,
        turn=0,
        prompt=TokenPrompt(ids),
        sampling=SamplingParams(),
    )


def test_a_chain_is_appended_to() -> None:
    encodings = ChainEncodings()
    chain = array("i", (1, 22))
    assert encodings.ids(request_for(chain), chain) == b"1,22"
    chain.extend((333,))

    assert encodings.ids(request_for(chain), chain) == b"1,22,333"
    assert encodings.ids(request_for(chain), chain) == b"1,22,333"


def test_a_new_attempt_starts_from_nothing() -> None:
    encodings = ChainEncodings()
    first, second = array("i", (1, 2, 3)), array("i", (4,))
    encodings.ids(request_for(first), first)

    assert encodings.ids(request_for(second, attempt=1), second) == b"4"


@pytest.mark.parametrize("changed", [(1,), (1, 9)])
def test_a_chain_that_changed_is_a_broken_invariant(changed: tuple[int, ...]) -> None:
    encodings = ChainEncodings()
    chain = array("i", (1, 2))
    encodings.ids(request_for(chain), chain)
    other = array("i", changed)

    with pytest.raises(AssertionError, match="the chain"):
        encodings.ids(request_for(other), other)


def test_dropping_forgets_the_text_and_is_idempotent() -> None:
    encodings = ChainEncodings()
    chain = array("i", (1, 2))
    encodings.ids(request_for(chain), chain)

    encodings.drop(SampleId("t", 0))
    encodings.drop(SampleId("t", 0))

    assert encodings.nbytes() == 0
