"""What hedging costs where nothing stalls: turns per CPU second with it off and on, `make bench`.

Measured November 2026 on two cores shared with other work; figures in `docs/tail.md`.
"""

import json
import sys
import time

from msgspec.structs import replace

from rolloutkit import clock
from rolloutkit.batch import prepare
from rolloutkit.engines.simulated import SimulatedConfig, SimulatedEngine
from rolloutkit.tail import HedgeSettings, OutputCapSettings, TailSettings
from tests.benchmarks.bench_virtual_turns import CountingSink, environment, settings

TACTICS = {
    "off": TailSettings(),
    "hedge": TailSettings(hedge=HedgeSettings(model_calls=True)),
    "cap": TailSettings(output_cap=OutputCapSettings(adaptive=True)),
}


def measure(name, num_samples=2_000):
    scripted, sink = environment(num_samples), CountingSink()
    tasks = scripted.tasks()
    engine = SimulatedEngine(SimulatedConfig(parallelism=num_samples, progress_seconds=5))

    async def main():
        orchestrator = prepare(
            sink,
            engine=engine,
            environment=scripted,
            settings=replace(settings(num_samples), tail=TACTICS[name]),
        )
        started = time.process_time()
        await orchestrator.run(tasks)
        return time.process_time() - started

    seconds = clock.run(main(), time="virtual")
    return {"tactic": name, "turns_per_cpu_second": round(sink.num_turns / seconds)}


def test_hedging():
    for name in TACTICS:
        print(json.dumps(max((measure(name) for _ in range(3)), key=by_speed)))


def by_speed(run):
    return run["turns_per_cpu_second"]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(measure(argument)))
