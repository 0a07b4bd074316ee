"""The history follows a workload over its epochs, and is refused for another one."""

import math

import msgspec
import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.estimate import (
    History,
    ReferenceRates,
    TaskHistory,
    next_history,
    read_history,
    write_history,
)
from rolloutkit.estimate.history import MAX_COUNT, MIN_RECALL_SAMPLES
from rolloutkit.types import SampleId

RATES = ReferenceRates()


def epoch(before: History | None, lengths: dict[str, float], num_samples: int = 8) -> History:
    """The history after an epoch in which all samples of a task took as long."""
    works = {
        SampleId(task_id, index): seconds
        for task_id, seconds in lengths.items()
        for index in range(num_samples)
    }
    after = next_history(before, "bfcl", RATES, works)
    assert after is not None
    return after


def test_a_first_epoch_says_what_it_saw():
    history = epoch(None, {"a": math.e, "b": math.e**3})

    assert history.tasks["a"].mean_ln == pytest.approx(1)
    assert history.tasks["a"].count == 8
    assert history.population == pytest.approx((2, 1))
    assert history.num_epochs == 1
    assert history.quantiles == pytest.approx([math.e] * 8 + [math.e**3] * 8)


def test_a_task_follows_its_last_epochs_and_its_weight_is_bounded():
    history = epoch(None, {"a": math.e})
    for _ in range(8):
        history = epoch(history, {"a": math.e**3, "b": 1.0}, num_samples=64)

    assert 2.5 < history.tasks["a"].mean_ln < 3
    assert history.tasks["a"].count == MAX_COUNT


def test_a_task_that_was_not_seen_keeps_its_record():
    before = epoch(None, {"a": 2.0, "b": 3.0})

    assert epoch(before, {"b": 3.0}).tasks["a"] == before.tasks["a"]


def test_an_epoch_that_finished_nothing_changes_nothing():
    before = epoch(None, {"a": 2.0})

    assert next_history(before, "bfcl", RATES, {}) == before
    assert next_history(None, "bfcl", RATES, {}) is None


def test_recall_is_unknown_until_enough_samples_were_judged():
    lengths = {f"t{index}": 1.0 + index for index in range(16)}
    history = epoch(None, lengths)
    recalls = [history.recall]
    while sum(one.num_samples for one in history.recalls) < MIN_RECALL_SAMPLES:
        history = epoch(history, lengths)
        recalls.append(history.recall)

    assert recalls == [None, None, 1.0]


def test_recall_is_that_of_the_last_three_epochs():
    lengths = {f"t{index}": 1.0 + index for index in range(16)}
    history = epoch(None, lengths)
    for _ in range(3):
        history = epoch(history, lengths)
    assert history.recall == 1.0

    for _ in range(3):  # every task is now as long as it was short
        lengths = {name: 17.0 - seconds for name, seconds in lengths.items()}
        history = epoch(history, lengths)

    assert len(history.recalls) == 3
    assert history.recall is not None
    assert history.recall < 0.5


def test_it_is_read_as_it_was_written(tmp_path):
    history = epoch(epoch(None, {"a": 2.0, "b": 30.0}), {"b": 20.0})
    write_history(tmp_path / "history.json", history)

    assert read_history(tmp_path / "history.json", "bfcl", RATES) == history


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "swe"}, "is of workload 'swe', this run is 'bfcl'"),
        ({"version": 9}, "has version 9, expected 1"),
        ({"rates": {"decode_tokens_per_second": 1.0}}, "other history.rates"),
        ({"tasks": {"a": {"mean_ln": "long", "count": 1}}}, "is no history file"),
        ({"colour": "red"}, "is no history file"),
    ],
)
def test_a_history_that_does_not_fit_is_refused_in_one_line(tmp_path, change, message):
    path = tmp_path / "history.json"
    values = msgspec.to_builtins(epoch(None, {"a": 2.0}))
    path.write_bytes(msgspec.json.encode({**values, **change}))

    with pytest.raises(ConfigError, match=message) as caught:
        read_history(path, "bfcl", RATES)

    assert str(caught.value).startswith("history.path: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="leave it out for a first run"):
        read_history(tmp_path / "none.json", "bfcl", RATES)


def test_a_record_is_small():
    history = epoch(None, {f"task-{index}": 1.0 + index for index in range(1_000)})

    assert len(msgspec.json.encode(history)) < 80 * 1_000
    assert isinstance(history.tasks["task-3"], TaskHistory)
