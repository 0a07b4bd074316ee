"""Recorded chains are derived from trace files by the stated rules, and by nothing else."""

import gzip
import json

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.record.chains import MAX_CONTEXT, RecordedTurn, read_chains


def written(path, *traces):
    with gzip.open(path, "wt") as file:
        for trace in traces:
            file.write(json.dumps(trace) + "\n")
    return path


def trace_of(*turns):
    return {"trace_id": "t", "turns": list(turns)}


def turns_of(path, family, *turns):
    return read_chains(written(path / "t.jsonl.gz", trace_of(*turns)), family)[0].turns


def test_weka_pauses_are_capped_and_turns_without_a_tool_have_none(tmp_path):
    turns = turns_of(
        tmp_path,
        "weka",
        {"context_tokens": 50, "prompt_tokens_new": 7, "output_tokens": 0, "tool_seconds": 400.0},
        {"context_tokens": 60, "prompt_tokens_new": 90, "output_tokens": 5, "tool_seconds": None},
    )

    assert turns == (RecordedTurn(50, 50, 1, 120.0), RecordedTurn(60, 60, 5, 0.0))


def test_miniswe_tools_take_the_gap_without_the_decoding(tmp_path):
    turns = turns_of(
        tmp_path,
        "miniswe",
        {"context_tokens": 10, "prompt_tokens_new": 10, "output_tokens": 60, "gap_seconds": 4.0},
        {"context_tokens": 90, "prompt_tokens_new": 20, "output_tokens": 60, "gap_seconds": 0.5},
        {"context_tokens": 99, "prompt_tokens_new": 3, "output_tokens": 1, "gap_seconds": None},
    )

    assert [turn.tool_seconds for turn in turns] == [3.0, 0.05, 0.0]
    assert [turn.new for turn in turns] == [10, 20, 3]


def test_long_contexts_are_scaled_and_outputs_are_kept(tmp_path):
    turns = turns_of(
        tmp_path,
        "weka",
        {"context_tokens": 100_001, "prompt_tokens_new": 0, "output_tokens": 9},
        {"context_tokens": 399_000, "prompt_tokens_new": 298_000, "output_tokens": 1_000},
    )

    assert turns[0] == RecordedTurn(50_000, 50_000, 9, 0.0)
    assert turns[1] == RecordedTurn(199_500, 149_000, 500, 0.0)
    assert all(turn.context + turn.output <= MAX_CONTEXT for turn in turns)


def test_bfcl_tokens_come_from_the_lengths_of_texts(tmp_path):
    turns = turns_of(
        tmp_path,
        "bfcl",
        {"output_chars": 43, "observation_chars": 81, "tool_seconds": 0.5},
        {"output_chars": None, "observation_chars": None, "tool_seconds": None},
    )

    assert turns == (RecordedTurn(3_000, 3_000, 74, 0.5), RecordedTurn(3_114, 40, 64, 0.0))


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"context_tokens": 10, "prompt_tokens_new": 10}, "output_tokens is missing"),
        ({"context_tokens": "ten"}, "Expected `int"),
        (
            {"context_tokens": 10, "output_tokens": 1, "tool_seconds": -1.0},
            "tool_seconds is negative",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path, turn, said):
    good = trace_of({"context_tokens": 10, "output_tokens": 1})
    path = written(tmp_path / "t.jsonl.gz", good, trace_of(turn))

    with pytest.raises(ConfigError, match=f"t.jsonl.gz, line 2: {said}"):
        read_chains(path, "weka")
