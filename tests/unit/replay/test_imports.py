"""Foreign recordings become traces of ours, and nothing unknown becomes zero."""

import json

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.estimate import ReferenceRates
from rolloutkit.record import TraceWriter
from rolloutkit.record.imports import Format, ImportOptions, events_of, read_foreign
from rolloutkit.record.lives import lives_of_chains, read_lives
from rolloutkit.record.numeric import Fills, NumericRule, read_numeric
from rolloutkit.types import SampleId
from tests.unit.replay.recordings import turn, write_lines

CHAT = [
    {"role": "user", "content": "x" * 40},
    {"role": "assistant", "content": "y" * 8, "tool_calls": None},
    {"role": "tool", "content": "z" * 20},
    {"role": "assistant", "content": "y" * 12},
]
COUNTED = ImportOptions(chars_per_token=4.0, fills=Fills(seconds=2.0))


def imported(path, samples):
    """What a replay reads of them."""
    with TraceWriter(path) as writer:
        for event in events_of(samples, ReferenceRates()):
            writer(event)
    return read_lives(path).lives


def test_numbers_come_back_as_they_were(tmp_path):
    path = write_lines(
        tmp_path / "in.gz",
        {"trace_id": "a", "turns": [turn(), turn(tool=None, tool_seconds=None)]},
        {"trace_id": "b", "turns": [turn(tool_seconds=0.25)]},
    )

    lives = imported(tmp_path / "out.gz", read_foreign(path, Format.SHARED, ImportOptions()))

    direct = lives_of_chains(read_numeric(path, NumericRule.AUTO, Fills())).lives
    assert [one.sample_id for one in lives] == [one.sample_id for one in direct]
    assert [one.attempts for one in lives] == [one.attempts for one in direct]


def test_message_logs_are_measured_by_the_stated_rule_and_grouped_by_task(tmp_path):
    path = write_lines(
        tmp_path / "in.gz",
        {"task_id": "t", "trace_id": "a", "messages": CHAT},
        {"task_id": "t", "trace_id": "b", "messages": CHAT},
    )

    one, other = imported(tmp_path / "out.gz", read_foreign(path, Format.OPENAI, COUNTED))

    assert (one.sample_id, other.sample_id) == (SampleId("t", 0), SampleId("t", 1))
    first, second = one.attempts[0].calls
    assert (first.context, first.new, first.output) == (10, 10, 2)
    assert (second.context, second.new, second.output) == (17, 5, 3)
    assert [act.seconds for act in one.attempts[0].acts] == [2.0]
    assert first.seconds is None


def test_counts_of_the_server_go_before_measured_ones(tmp_path):
    usage = {"prompt_tokens": 50, "completion_tokens": 7}
    messages = [
        {"role": "user", "content": "x" * 40},
        {"role": "assistant", "content": "y", "extra": {"response": {"usage": usage}}},
        {"role": "user", "content": "seen"},
    ]
    path = tmp_path / "in.traj.json"
    path.write_text(json.dumps({"instance_id": "i", "messages": messages}, indent=2))

    (sample,) = read_foreign(path, Format.MINISWE, COUNTED)

    assert sample.task_id == "i"
    assert sample.chain.turns[0][:3] == (50, 50, 7)
    assert sample.chain.turns[0].tool_seconds == 2.0


def test_atif_steps_are_turns(tmp_path):
    path = write_lines(
        tmp_path / "in.gz",
        {
            "schema_version": "ATIF-v1.4",
            "session_id": "s",
            "steps": [
                {"source": "user", "message": "do"},
                {
                    "source": "agent",
                    "message": "ok",
                    "tool_calls": [{}],
                    "observation": {"results": []},
                    "metrics": {"prompt_tokens": 20, "completion_tokens": 4},
                },
            ],
        },
    )

    (sample,) = read_foreign(path, Format.ATIF, COUNTED)

    assert sample.chain.turns == ((20, 20, 4, 2.0),)


def test_verl_dumps_of_one_prompt_are_a_group(tmp_path):
    dumps = [{"input": "x" * 40, "output": "y" * 8, "score": 1.0}] * 2
    path = write_lines(tmp_path / "in.gz", *dumps)

    one, other = read_foreign(path, Format.VERL, COUNTED)

    assert one.task_id == other.task_id
    assert one.chain.turns == ((10, 10, 2, 0.0),)


@pytest.mark.parametrize(
    ("document", "source", "message"),
    [
        ({"turns": [turn()]}, "shared", "line 2: Object missing required field `trace_id`"),
        ({"trace_id": "b", "turns": []}, "shared", "line 2: turns is empty"),
        (
            {"trace_id": "b", "turns": [turn(tool_seconds=-1)]},
            "shared",
            r"line 2: turns\[0\].tool_seconds is negative: -1",
        ),
        (
            {"trace_id": "b", "turns": [turn(tool_seconds=None)]},
            "shared",
            r"line 2: turns\[0\].tool_seconds is not recorded",
        ),
        (
            {"trace_id": "b", "turns": [turn(output_tokens=None)]},
            "shared",
            r"line 2: turns\[0\].output_tokens is not recorded",
        ),
        ({"trace_id": "a", "turns": [turn()]}, "shared", "line 2: trace_id 'a' is that of line 1"),
        ("{", "shared", "line 2: "),
        ({"messages": CHAT}, "openai", "prompt_tokens_new is not recorded"),
        ({"schema_version": "2", "steps": []}, "atif", "expected ATIF-v1.x, got '2'"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path, document, source, message):
    good = [{"trace_id": "a", "turns": [turn()]}] if source == "shared" else []
    path = write_lines(tmp_path / "in.gz", *good, document)

    with pytest.raises(ConfigError, match=message):
        read_foreign(path, Format(source), ImportOptions())
