"""Which samples a replay runs, and under which ids."""

import pytest

from rolloutkit.config.replay import load_replay
from rolloutkit.errors import ConfigError
from rolloutkit.record.lives import Act, Attempt, Life, Recording
from rolloutkit.replay import make_replay
from rolloutkit.sim.recorded import LifeBatch
from rolloutkit.types import SampleId


def life(task, index, environment="program"):
    return Life(SampleId(task, index), environment, (Attempt(((Act("tool", 1.0),),)),))


def replay(lives, *overrides):
    return make_replay(load_replay("replay", ["trace=any", *overrides]), Recording(tuple(lives)))


def test_samples_that_are_missing_leave_no_gap_in_their_group():
    lives = [life("a", 0), life("b", 1), life("a", 3)]

    made = replay(lives)

    assert made.lives == {
        SampleId("a", 0): lives[0],
        SampleId("b", 0): lives[1],
        SampleId("a", 1): lives[2],
    }
    assert [(one.task_id, one.num_samples) for one in LifeBatch(made.lives).tasks()] == [
        ("a", 2),
        ("b", 1),
    ]


def test_groups_are_drawn_from_one_environment():
    lives = [life("a", 0, "x"), life("b", 0, "y")]

    with pytest.raises(ConfigError, match=r"batch\.environment: any mixes 'x', 'y', and a group"):
        replay(lives, "batch.num_groups=2")
    made = replay(lives, "batch.num_groups=2", "batch.environment=y")
    assert set(made.lives.values()) == {lives[1]}
    assert len(made.lives) == 16


def test_an_earlier_epoch_becomes_the_history():
    made = replay([life("a", 0)], "batch.num_groups=3", "batch.num_earlier=2")

    assert made.history is not None
    assert set(made.history.tasks) == {"group-0", "group-1", "group-2"}
