"""Routing by cost: a sample goes home unless it is cheaper elsewhere this very turn. Pure.

What a turn costs at a worker, in seconds, by the pace that was measured there ("Trajectory-aware
routing", resource model section 6.5, with the constants that survived docs/routing.md):

    J(w) = factor_w * (prefill * missing_w + output * (step + crowding * crowd_w))

Elsewhere the whole context is missing, once. At home it is what the sample adds to an overfull
cache: so much is evicted, of its own prefix or of others', and computed anew turn by turn. Workers
without room for the context are out: what they would evict costs more than any turn gains. What is
gained at decoding counts for one turn, since the next one looks again, and a difference of the
moment that is spread over the turns to come sends samples back and forth.
"""

from __future__ import annotations

import numpy as np

from rolloutkit.routing.fleet import Fleet, Resident

_FILL = 0.9  # of a cache, that newcomers may fill: contexts grow
_OVERFULL_TURNS = 2.0  # a cache that is overfull is so for this turn and at least the next
_MARGIN = 1.5  # a move must save so many times what it costs: the pace is an estimate
_AHEAD = 2.0  # residents that a worker may be ahead for siblings who share all their context


class Cost:
    """At home, and with a parked sample wherever there is room: its prefix is the next to go."""

    adopts = True
    weighs_work = False

    def first(self, fleet: Fleet, resident: Resident) -> int:
        """The worker that is least loaded for its speed, or a sibling's, while the prefix that they
        share is worth the imbalance.
        """
        load = (fleet.num_residents + 1.0) * fleet.pace.factors.round(1)
        siblings = fleet.siblings(resident.sample_id.task_id)
        if siblings:
            load[list(siblings)] -= _AHEAD * fleet.shared_part(resident.sample_id.task_id)
        return fleet.least(load)

    def again(self, fleet: Fleet, resident: Resident) -> int:
        """Home, unless another worker has room and is cheaper; all of them are scored at once."""
        home, pace = resident.worker, fleet.pace
        if not pace.is_known or not resident.num_turns:
            return home
        context = resident.context_tokens
        crowd = fleet.num_tokens.copy()
        crowd[home] -= context
        room = fleet.eligible() & np.isfinite(fleet.capacity)  # unknown is not the same as empty
        room &= crowd + context <= _FILL * fleet.capacity
        room[home] = False
        if not room.any():
            return home
        output = resident.output_tokens / resident.num_turns
        decode = output * (pace.step + pace.crowding * crowd)
        costs = pace.factors * (_MARGIN * pace.prefill * context + decode)
        excess = crowd[home] + context - fleet.capacity[home]
        missing = _OVERFULL_TURNS * min(max(excess, 0.0), context)
        at_home = float(pace.factors[home] * (pace.prefill * missing + decode[home]))
        costs[~room] = np.inf
        best = int(costs.argmin())
        return best if costs[best] < at_home else home
