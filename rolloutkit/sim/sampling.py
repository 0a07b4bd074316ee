"""Batches drawn from recorded lives, with groups whose samples are alike in length.

The sampling rule of the policy study: lives are ranked by reference work; a sample takes the life
at the rank of a normal variate, of which the share `icc` of the variance is common to its group (a
rank copula: lengths correlate, their distribution stays that of the recording).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

from rolloutkit.estimate import ReferenceRates
from rolloutkit.record.lives import Life
from rolloutkit.types import SampleId


class Draw(NamedTuple):
    """A batch, and what its tasks' rollouts of an earlier epoch would have taken."""

    lives: dict[SampleId, Life]
    earlier_works: dict[SampleId, float]


def draw_batch(
    lives: Sequence[Life],
    *,
    num_groups: int,
    group_size: int,
    icc: float,
    num_earlier: int,
    num_spare: int = 0,
    rates: ReferenceRates,
    rng: random.Random,
) -> Draw:
    """Draw groups with replacement.

    Neither earlier rollouts nor `num_spare` samples more of each group, which are drawn last,
    change which lives the others get.
    """
    ranked = sorted(lives, key=lambda life: (life.work(rates), life.sample_id))
    quality = [rng.gauss(0.0, 1.0) for _ in range(num_groups)]

    def draw(group: int) -> Life:
        variate = math.sqrt(icc) * quality[group] + math.sqrt(1.0 - icc) * rng.gauss(0.0, 1.0)
        rank = int(NormalDist().cdf(variate) * len(ranked))
        return ranked[min(rank, len(ranked) - 1)]

    batch = {
        SampleId(f"group-{group}", index): draw(group)
        for group in range(num_groups)
        for index in range(group_size)
    }
    earlier = {
        SampleId(f"group-{group}", index): draw(group).work(rates)
        for group in range(num_groups)
        for index in range(num_earlier)
    }
    spare = {
        SampleId(f"group-{group}", group_size + index): draw(group)
        for group in range(num_groups)
        for index in range(num_spare)
    }
    in_order = sorted(
        {**batch, **spare}.items(), key=lambda one: (int(one[0].task_id[6:]), one[0].sample_index)
    )
    return Draw(dict(in_order) if spare else batch, earlier)
