"""How much of what running requests may still say is set aside for them: SGLang's estimate."""

from __future__ import annotations

from rolloutkit.sim.sglang.rules import WorkerRules
from rolloutkit.sim.sglang.running import RunningBatch


class NewTokenRatio:
    """Starts careful, and falls with each decode step; a retraction puts it to what was learnt."""

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules
        self.value = rules.first_new_token_ratio

    def reset(self) -> None:
        """Nothing runs any more."""
        self.value = self._rules.first_new_token_ratio

    def decay(self, steps: int) -> None:
        """So many steps had room enough."""
        rules = self._rules
        span = rules.first_new_token_ratio - rules.least_new_token_ratio
        value = self.value - steps * span / rules.ratio_decay_steps
        self.value = max(rules.least_new_token_ratio, value)

    def learn(self, running: RunningBatch) -> None:
        """After a retraction: the share that those who stayed have said of what they may say."""
        said = sum(running.num_generated(request) for request in running)
        wanted = sum(request.max_new for request in running)
        said += self._rules.retract_steps * len(running)
        self.value = min(1.0, said / (wanted + 1))
