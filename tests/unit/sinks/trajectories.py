"""Trajectories for the tests of sinks: one at will, or any that a sample could leave."""

from array import array
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from rolloutkit.types import (
    CancelReason,
    Chain,
    Failure,
    FailureKind,
    SampleId,
    Status,
    StopReason,
    Timings,
    Trajectory,
)


def ended_sample(task_id: str = "task", sample_index: int = 0, **fields: Any) -> Trajectory:
    """A completed sample, with `fields` instead of the defaults."""
    return Trajectory(
        **{
            "sample_id": SampleId(task_id, sample_index),
            "environment": "files",
            "status": Status.COMPLETED,
            "stop_reason": StopReason.DONE,
            **fields,
        }
    )


def fields_of(trajectory: Trajectory) -> Mapping[str, Any]:
    """Everything that a trajectory holds, comparable."""
    fields = {name: getattr(trajectory, name) for name in trajectory.__struct_fields__}
    fields["chains"] = [
        {name: getattr(chain, name) for name in Chain.__slots__} for chain in trajectory.chains
    ]
    return fields


INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(0, 10**9)
TEXT = st.text(st.characters() | st.just("\udfff"), max_size=8)  # half a surrogate pair too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    chain = Chain(draw(st.integers(0, 5)), draw(st.none() | st.integers(0, 5)))
    runs = st.tuples(
        st.sampled_from([-1, 0, 1, 7]), st.lists(st.tuples(INT32, FLOAT32), max_size=4)
    )
    chain.has_logprobs = draw(st.booleans())
    chain.is_trainable = draw(st.booleans())
    for version, tokens in draw(st.lists(runs, max_size=4)):
        for token_id, logprob in tokens:
            chain.token_ids.append(token_id)
            chain.logprobs.append(logprob)
            chain.sampled_mask.append(int(version >= 0))
            chain.policy_versions.append(version)
    if draw(st.booleans()):
        chain.logprobs = array("f", bytes(4 * len(chain)))
    return chain


TRAJECTORIES = st.builds(
    Trajectory,
    sample_id=st.builds(SampleId, TEXT, COUNT),
    environment=TEXT,
    status=st.sampled_from(Status),
    stop_reason=st.sampled_from(StopReason),
    failure=st.none()
    | st.builds(Failure, kind=st.sampled_from(FailureKind), message=TEXT, detail=st.none() | TEXT),
    cancel_reason=st.none() | st.sampled_from(CancelReason),
    score=st.none() | FLOAT,
    score_details=st.dictionaries(TEXT, JSON, max_size=3),
    reward=FLOAT,
    num_turns=COUNT,
    num_actions=COUNT,
    attempt=COUNT,
    prompt_tokens=st.none() | COUNT,
    cached_tokens=st.none() | COUNT,
    output_tokens=COUNT,
    chains=st.lists(chains(), max_size=2).map(tuple),
    messages=st.lists(
        st.fixed_dictionaries(
            {"role": TEXT, "content": TEXT},
            optional={
                "tool_calls": st.lists(
                    st.fixed_dictionaries(
                        {
                            "id": TEXT,
                            "type": TEXT,
                            "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
                        }
                    ),
                    max_size=2,
                )
            },
        ),
        max_size=3,
    ).map(tuple),
    token_exact=st.booleans(),
    worker=st.none() | TEXT,
    timings=st.builds(Timings, arrived_at=FLOAT, admitted_at=st.none() | FLOAT, finished_at=FLOAT),
)
