"""Chains are append-only and compact, errors say their kind and survive pickling."""

import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit import errors
from rolloutkit.dialogue import as_message, with_call_ids
from rolloutkit.errors import boundary, failure_of
from rolloutkit.types import (
    AssistantMessage,
    Chain,
    Completion,
    FailureKind,
    FinishReason,
    SampleId,
    StopReason,
    ToolCall,
    VersionSpan,
)

PIECES = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 2**31 - 1), max_size=20)), max_size=8
)


def completed(token_ids, **fields):
    logprobs = fields.pop("logprobs", array("f", [-1.0] * len(token_ids)))
    return Completion(
        finish_reason=FinishReason.STOP, token_ids=token_ids, logprobs=logprobs, **fields
    )


@given(PIECES)
def test_the_four_arrays_stay_parallel_and_earlier_tokens_never_change(pieces):
    chain = Chain()
    for is_sampled, token_ids in pieces:
        before = chain.token_ids[:]
        if is_sampled:
            chain.append_completion(completed(token_ids))
        else:
            chain.append_context(token_ids)

        assert chain.token_ids[: len(before)] == before
        assert (
            len(chain)
            == len(chain.logprobs)
            == len(chain.sampled_mask)
            == len(chain.policy_versions)
        )

    assert list(chain.token_ids) == [token for _, ids in pieces for token in ids]
    assert sum(chain.sampled_mask) == sum(len(ids) for is_sampled, ids in pieces if is_sampled)
    assert chain.nbytes() == 13 * len(chain)


def test_context_has_version_minus_one_and_completions_their_spans():
    chain = Chain()

    chain.append_context([1, 2])
    chain.append_completion(
        completed([3, 4, 5], versions=(VersionSpan(7, 0, 2), VersionSpan(8, 2, 3)))
    )

    assert list(chain.policy_versions) == [-1, -1, 7, 7, 8]
    assert chain.is_trainable


@pytest.mark.parametrize(
    "completion", [completed([1], constrained=True), completed([1], logprobs=None)]
)
def test_a_constrained_or_logprob_free_completion_makes_the_chain_untrainable(completion):
    chain = Chain()
    chain.append_completion(completion)
    assert not chain.is_trainable


def test_mismatched_logprobs_and_version_spans_are_refused():
    with pytest.raises(ValueError, match="2 token ids came with 1 log-probs"):
        Chain().append_completion(completed([1, 2], logprobs=array("f", [-1])))
    with pytest.raises(ValueError, match="do not cover 2 tokens"):
        Chain().append_completion(completed([1, 2], versions=(VersionSpan(1, 0, 1),)))


def test_a_fork_starts_with_its_parents_tokens_as_context():
    parent = Chain()
    parent.append_context([1])
    parent.append_completion(completed([2]))

    child = parent.fork(1)
    child.append_context([3])

    assert list(child.token_ids) == [1, 2, 3]
    assert list(child.sampled_mask) == [0, 0, 0]
    assert child.parent == 0
    assert len(parent) == 2


def test_a_spoken_message_names_its_calls():
    said = AssistantMessage("hm", (ToolCall("ls", {"a": True}), ToolCall("cd", {}, "mine")))

    named = with_call_ids(said, turn=3)
    message = as_message(named)

    assert message["content"] == "hm"
    assert [call.call_id for call in named.tool_calls] == ["call_3_0", "mine"]
    call = message["tool_calls"][0]
    assert call["id"] == "call_3_0"
    assert call["function"] == {"name": "ls", "arguments": '{"a":true}'}


def test_sample_ids_read_as_task_and_index():
    assert str(SampleId("swe/7", 3)) == "swe/7#3"


class TestErrors:
    def test_a_foreign_error_gets_the_kind_of_its_boundary(self):
        with pytest.raises(errors.SetUpFailed, match="OSError: no disk") as caught:
            with boundary(errors.SetUpFailed):
                raise OSError("no disk")

        failure = failure_of(caught.value, attempt=1)
        assert failure.kind is FailureKind.SET_UP
        assert failure.attempt == 1
        assert "no disk" in failure.detail

    def test_our_own_errors_and_success_pass_unchanged(self):
        with boundary(errors.ProgramError):
            pass
        with pytest.raises(errors.LimitExceeded):
            with boundary(errors.ProgramError):
                raise errors.LimitExceeded("action", 1.0)

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (errors.EnvironmentFailed("x"), FailureKind.ENVIRONMENT),
            (errors.EngineError("x"), FailureKind.ENGINE),
            (errors.RequestError("x"), FailureKind.REQUEST),
            (errors.RenderError("x"), FailureKind.RENDER),
            (errors.ScoreFailed("x"), FailureKind.SCORE),
            (errors.ProgramError("x"), FailureKind.PROGRAM),
            (errors.AttemptEnded("x"), FailureKind.PROGRAM),
            (errors.LimitExceeded("turn", 2.0), FailureKind.LIMIT),
        ],
    )
    def test_every_error_has_a_kind_and_pickles(self, error, kind):
        assert failure_of(error).kind is kind
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)

    def test_stop_sample_pickles(self):
        stop = pickle.loads(pickle.dumps(errors.StopSample(StopReason.MAX_TURNS)))
        assert stop.reason is StopReason.MAX_TURNS
