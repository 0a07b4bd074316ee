import json
import math
from array import array
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rolloutkit.sinks.lines import decode_line, encode_line
from rolloutkit.types import (
    CancelReason,
    Chain,
    Completion,
    Failure,
    FailureKind,
    FinishReason,
    SampleId,
    Status,
    StopReason,
    Trajectory,
    VersionSpan,
)
from tests.unit.sinks.trajectories import TRAJECTORIES, ended_sample, fields_of


def two_turn_chain() -> Chain:
    chain = Chain()
    chain.append_context([1, 2])
    chain.append_completion(
        Completion(
            finish_reason=FinishReason.STOP,
            token_ids=[3, 4, 5],
            logprobs=[-0.1, -0.25, 0.0],
            versions=(VersionSpan(6, 0, 1), VersionSpan(7, 1, 3)),
        )
    )
    chain.append_context([6])
    return chain


def read(trajectory: Trajectory) -> dict[str, Any]:
    return json.loads(encode_line(trajectory))


@given(TRAJECTORIES)
def test_any_trajectory_reads_back_as_it_was(trajectory: Trajectory) -> None:
    line = encode_line(trajectory)

    assert b"\n" not in line
    assert fields_of(decode_line(line)) == fields_of(trajectory)


def test_line_has_the_keys_of_the_contract() -> None:
    line = read(ended_sample("task", 3))

    assert list(line)[:6] == [
        "sample_id",
        "task_id",
        "sample_index",
        "environment",
        "status",
        "stop_reason",
    ]
    assert set(line) >= {
        "error",
        "cancel_reason",
        "score",
        "score_details",
        "reward",
        "num_turns",
        "num_actions",
        "attempt",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "token_exact",
        "worker",
        "timings",
        "policy_versions",
        "chains",
        "messages",
    }
    assert line["sample_id"] == "task#3"


def test_chain_is_written_as_arrays_with_spans_of_policy_versions() -> None:
    line = read(ended_sample(chains=(two_turn_chain(),)))

    assert line["policy_versions"] == [6, 7]
    assert line["chains"] == [
        {
            "index": 0,
            "parent": None,
            "is_trainable": True,
            "has_logprobs": True,
            "token_ids": [1, 2, 3, 4, 5, 6],
            "logprobs": [0.0, 0.0, -0.1, -0.25, 0.0, 0.0],
            "sampled_mask": [0, 0, 1, 1, 1, 0],
            "policy_versions": [[6, 2, 3], [7, 3, 5]],
        }
    ]


def test_failure_is_written_under_error_and_unknown_is_null() -> None:
    failure = Failure(kind=FailureKind.LIMIT, message="ran out", limit="action", attempt=2)

    line = read(ended_sample(status=Status.FAILED, stop_reason=StopReason.FAILED, failure=failure))

    assert line["error"] == {
        "kind": "limit",
        "message": "ran out",
        "limit": "action",
        "attempt": 2,
        "detail": None,
    }
    assert line["score"] is None
    assert line["prompt_tokens"] is None
    assert line["policy_versions"] is None


def test_cancelled_sample_says_why() -> None:
    line = read(
        ended_sample(
            status=Status.CANCELLED,
            stop_reason=StopReason.CANCELLED,
            cancel_reason=CancelReason.DEADLINE,
        )
    )

    assert (line["status"], line["cancel_reason"]) == ("cancelled", "deadline")


def test_chain_without_logprobs_says_null_and_not_zero() -> None:
    chain = Chain()
    chain.append_completion(Completion(finish_reason=FinishReason.STOP, token_ids=[1, 2]))

    line = encode_line(ended_sample(chains=(chain,)))

    assert json.loads(line)["chains"][0]["logprobs"] is None
    assert list(decode_line(line).chains[0].logprobs) == [0.0, 0.0]


def test_logprob_that_is_no_number_is_null() -> None:
    chain = Chain()
    chain.append_completion(
        Completion(finish_reason=FinishReason.STOP, token_ids=[1, 2], logprobs=[-math.inf, -0.5])
    )

    line = encode_line(ended_sample(chains=(chain,)))

    assert json.loads(line)["chains"][0]["logprobs"] == [None, -0.5]
    assert math.isnan(decode_line(line).chains[0].logprobs[0])


def test_logprobs_take_the_digits_of_float32_and_stay_exact() -> None:
    logprobs = array("f", np.random.default_rng(0).exponential(2.0, 2000).astype(np.float32))
    chain = Chain()
    chain.append_completion(
        Completion(finish_reason=FinishReason.STOP, token_ids=range(2000), logprobs=logprobs)
    )

    line = encode_line(ended_sample(chains=(chain,)))

    assert decode_line(line).chains[0].logprobs == logprobs
    written = line.split(b'"logprobs":[')[1].split(b"]")[0]
    assert len(written) / 2000 < 12.5


@pytest.mark.parametrize(
    ("details", "written"),
    [
        ({"at": Fraction(1, 2)}, {"at": "Fraction(1, 2)"}),
        ({"mean": np.float32(0.5), "all": np.arange(2)}, {"mean": 0.5, "all": [0, 1]}),
        ({"inner": MappingProxyType({"a": 1})}, {"inner": {"a": 1}}),
        ({"seen": ("a", 1)}, {"seen": ["a", 1]}),
        ({1: "one"}, {"1": "one"}),
        ({("a", 1): 2}, {"repr": "{('a', 1): 2}"}),
    ],
)
def test_score_details_are_written_whatever_they_hold(
    details: dict[Any, Any], written: dict[str, Any]
) -> None:
    assert read(ended_sample(score_details=details))["score_details"] == written


def test_score_details_that_contain_themselves_are_written() -> None:
    details: dict[str, Any] = {}
    details["self"] = details

    assert read(ended_sample(score_details=details))["score_details"] == {"repr": "{'self': {...}}"}


def test_half_a_surrogate_pair_in_a_message_is_written_as_an_escape() -> None:
    trajectory = ended_sample(messages=({"role": "user", "content": "cut: \ud83d"},))

    line = encode_line(trajectory)

    assert b'"cut: \\ud83d"' in line
    assert decode_line(line).messages == trajectory.messages


def test_sample_id_with_a_hash_in_its_task_reads_back() -> None:
    trajectory = decode_line(encode_line(ended_sample("repo#12", 3)))

    assert trajectory.sample_id == SampleId("repo#12", 3)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        encode_line(ended_sample()).replace(b'"completed"', b'"finished"'),
        encode_line(ended_sample(chains=(two_turn_chain(),))).replace(
            b'"token_ids":[1,', b'"token_ids":['
        ),
        encode_line(ended_sample(chains=(two_turn_chain(),))).replace(b"[7,3,5]", b"[7,3,9]"),
    ],
)
def test_what_is_no_trajectory_raises_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is msgspec's or json's
        decode_line(line)
