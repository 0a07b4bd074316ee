"""Replays with faults and tactics: the same faults whatever the settings, and honest figures."""

import pytest

from rolloutkit.config.replay import load_replay
from rolloutkit.errors import ConfigError
from rolloutkit.record.lives import Act, Attempt, Call, Life, Recording
from rolloutkit.replay import make_replay, summarize_replay
from rolloutkit.report.text import summary_text
from rolloutkit.types import SampleId

PROGRESS = "engine.progress_seconds=5"


def life(number, num_turns, output=50):
    steps = []
    for turn in range(num_turns):
        steps += [Call(100 + 100 * turn, 100, output), (Act("tool", 1.0),)]
    return Life(SampleId(f"t{number}", 0), "", (Attempt(tuple(steps)),))


LIVES = [life(number, 5 + 3 * number) for number in range(8)]


def play(*overrides, lives=LIVES):
    config = load_replay(
        "replay", ["trace=any", "batch.num_groups=4", "batch.group_size=4", *overrides]
    )
    return summarize_replay(make_replay(config, Recording(tuple(lives))))


def test_stalls_lengthen_a_batch_and_hedges_take_most_of_it_back():
    faults = ("faults.call_stalls=0.02", PROGRESS)
    sound, stalled = play(PROGRESS), play(*faults)
    hedged = play(*faults, "tail.hedge.model_calls=true", "tail.hedge.patience_seconds=30")

    assert stalled.makespan_seconds > 1.5 * sound.makespan_seconds
    assert hedged.makespan_seconds < 0.7 * stalled.makespan_seconds
    assert hedged.hedges.num_won > 0
    assert hedged.num_turns == sound.num_turns == stalled.num_turns
    assert hedged.output_tokens == sound.output_tokens


def test_hanging_calls_fail_their_samples_unless_they_are_hedged():
    faults = ("faults.call_hangs=0.02", PROGRESS, "limits.model_call=600")
    hedge = ("tail.hedge.model_calls=true", "tail.hedge.patience_seconds=30")

    assert play(*faults).num_failed > 0
    assert play(*faults, *hedge, "tail.hedge.max_share=0.5").num_failed == 0


def test_hanging_actions_are_made_again_where_they_may_be():
    faults = ("faults.action_hangs=0.02", "limits.action=600")
    hedge = ("tail.hedge.actions=true", "tail.hedge.idempotent=[tool]", "tail.hedge.max_share=0.5")

    assert play(*faults).makespan_seconds > 600
    assert play(*faults, *hedge).makespan_seconds < 600


def test_spare_samples_leave_the_others_as_they_are_and_the_bias_is_said():
    plain = load_replay("replay", ["trace=any", "batch.num_groups=4", "batch.group_size=4"])
    spare = load_replay(
        "replay",
        ["trace=any", "batch.num_groups=4", "batch.group_size=4", "tail.oversampling.extra=2"],
    )
    lives = make_replay(plain, Recording(tuple(LIVES))).lives
    more = make_replay(spare, Recording(tuple(LIVES))).lives

    assert len(more) == len(lives) + 8
    assert all(more[sample_id] is kept for sample_id, kept in lives.items())

    summary = play("tail.oversampling.extra=2")

    assert (summary.num_completed, summary.num_cancelled) == (16, 8)
    assert summary.cancel_reasons == {"group_full": 8}
    text = " ".join(summary_text(summary).split())
    assert "8 closed early: the kept ones are biased towards short samples" in text


def test_capped_turns_are_counted_and_end_where_the_cap_says():
    runaway = [*LIVES, life(8, 9, output=5_000)]
    free = play(lives=runaway)
    capped = play("tail.output_cap.tokens=600", lives=runaway)

    assert free.num_capped_turns == 0
    assert capped.num_capped_turns > 0
    assert capped.makespan_seconds < free.makespan_seconds
    assert free.output_tokens - capped.output_tokens == capped.num_capped_turns * 4_400
    assert "turns cut off by tail.output_cap" in summary_text(capped)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["tail.hedge.model_calls=true"],
            "tail.hedge.model_calls: only calls that report progress",
        ),
        (["faults.call_stalls=0.1"], "faults: only calls that report progress"),
        (["engine=recorded", "tail.output_cap.tokens=5"], "tail.output_cap: engine=recorded"),
        (["tail.oversampling.extra=1"], "a batch as recorded has no spare samples, got 1"),
        (["tail.hedge.idempotent=[bfcl.step]"], "'bfcl.step' is a stage of a session"),
        (["tail.hedge.max_share=2"], "tail.hedge.max_share: expected `float` <= 1.0, got 2"),
        (["tail.hedge.factor=0.5"], "tail.hedge.factor: expected `float` >= 1.0, got 0.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_runs(overrides, message):
    with pytest.raises(ConfigError) as refused:
        load_replay("replay", ["trace=any", *overrides])

    assert message in str(refused.value)
