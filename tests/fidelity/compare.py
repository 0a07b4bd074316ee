"""Compares recordings of real servers with the simulated worker.

    python -m tests.fidelity.compare RECORDING.json.gz ...

Names the turns that differ; exits with 1 when they are more than 2 in 100.
"""

import sys
from pathlib import Path

from tests.fidelity.simulate import cached_tokens, rules_of
from tests.fidelity.turns import read_recording

MOST_DIFFERING = 0.02


def main(paths: list[str]) -> int:
    """The exit code."""
    code = 0
    for path in paths:
        recording = read_recording(Path(path))
        simulated = cached_tokens(recording, rules_of(recording))
        real = [answer.cached_tokens for answer in recording.answers]
        differing = {
            turn: f"{one} simulated, {other} real"
            for turn, (one, other) in enumerate(zip(simulated, real, strict=True))
            if one != other
        }
        print(f"{path}: {len(real) - len(differing)} of {len(real)} turns agree {differing or ''}")
        if len(differing) > MOST_DIFFERING * len(real):
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
