"""Turns per CPU second of the simulated SGLang worker with 512 samples alive: `make bench`.

Goal (issue "Resource model"): 3,000. One worker; each sample lives 20 turns of about 1,500 new and
500 output tokens and acts for 60 s between two of them. What samples say is made up beforehand
where the clock does not run.
"""

import heapq
import itertools
import json
import random
import time

from rolloutkit.sim.sglang import ServerSettings, Worker, server_of
from rolloutkit.sim.sglang.request import Request
from rolloutkit.sim.sglang.speech import stream, stream_key

NUM_ALIVE, NUM_TURNS = 512, 20
NEW, OUTPUT, ACT_SECONDS = 1_500, 500, 60.0

CASES = {
    "attention, thrashing": ServerSettings(model="qwen3-32b", tp=2),
    "attention, all in memory": ServerSettings(model="qwen3-32b", tp=2, memory_bytes=2.5e12),
    "hybrid, default split": ServerSettings(model="ling-3.0-flash", tp=2, weights="fp8"),
    "hybrid, pages of 64": ServerSettings(
        model="ling-3.0-flash", tp=2, weights="fp8", page_size=64
    ),
    "hybrid, vllm": ServerSettings(model="ling-3.0-flash", tp=2, weights="fp8", server="vllm"),
}


class Samples:
    """Their turns: what each says next, and when."""

    def __init__(self):
        self._rng = random.Random(1)
        self._contexts = [b""] * NUM_ALIVE
        self._turns = [0] * NUM_ALIVE
        self._order = itertools.count()
        self.events = []
        for sample in range(NUM_ALIVE):
            self._come_back(sample, self._rng.uniform(0, ACT_SECONDS))

    def request(self, sample):
        turn = self._turns[sample]
        new = max(1, int(self._rng.expovariate(1 / NEW)))
        output = max(1, int(self._rng.expovariate(1 / OUTPUT)))
        said = stream(stream_key(sample, turn), 0, new + output)
        self._contexts[sample] += said
        tokens = self._contexts[sample]
        return Request(tokens, len(tokens) // 4 - output, max_new=4 * OUTPUT)

    def over(self, sample, now):
        self._turns[sample] += 1
        if self._turns[sample] < NUM_TURNS:
            self._come_back(sample, now + self._rng.expovariate(1 / ACT_SECONDS))

    def _come_back(self, sample, at):
        heapq.heappush(self.events, (at, next(self._order), sample))


def measure(settings):
    """One batch on one worker."""
    server = server_of(settings)
    worker = Worker(server.rules, server.timer)
    samples = Samples()
    owners = {}
    seconds = now = num_turns = 0
    while samples.events or worker.wakes_at is not None:
        is_due = worker.wakes_at is not None and (
            not samples.events or worker.wakes_at <= samples.events[0][0]
        )
        if is_due:
            now = worker.wakes_at
            started = time.process_time()
            ended = worker.advance(now)
        else:
            now, _, sample = heapq.heappop(samples.events)
            request = samples.request(sample)
            owners[request] = sample
            started = time.process_time()
            ended = worker.submit(request, now)
        seconds += time.process_time() - started
        for request in ended:
            num_turns += 1
            samples.over(owners.pop(request), now)
    load = worker.load()
    counters = load.counters
    return {
        "turns_per_cpu_second": round(num_turns / seconds),
        "turns": num_turns,
        "makespan_seconds": round(now),
        "hit_rate": round(counters.cached_tokens / counters.prompt_tokens, 3),
        "retracted": counters.num_retracted_requests,
        "evicted_tokens": load.evicted_tokens_total,
        "decode_steps": counters.decode.n,
    }


def test_simulated_worker():
    for name, settings in CASES.items():
        print(json.dumps({"case": name, **measure(settings)}))


if __name__ == "__main__":
    test_simulated_worker()
