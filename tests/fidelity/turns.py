"""Turns that are asked of a real server and of the simulated worker alike, in one order.

A recording holds numbers only: where a prompt branches off which earlier turn, how many fresh
tokens follow, what the server sampled and how much of the prompt it had cached.
"""

from __future__ import annotations

import gzip
import random
from array import array
from pathlib import Path

import msgspec

VOCABULARY = range(300, 40_000)  # of SmolLM2, special tokens left out


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt: the first `keep` tokens of what turn `parent` ended with, then `new` fresh ones."""

    seed: int  # of the fresh tokens: the same seed and number, the same tokens
    new: int
    max_tokens: int
    parent: int | None = None
    keep: int = 0
    abort_after: int | None = None  # tokens


class Answer(msgspec.Struct, frozen=True):
    """What the server said."""

    cached_tokens: int
    output: list[int]


class Recording(msgspec.Struct, frozen=True):
    """A server, how it was started, and what it was asked, in order."""

    server: str
    arguments: dict[str, int]
    turns: list[Turn]
    answers: list[Answer]


def read_recording(path: Path) -> Recording:
    """The recording in that file."""
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Recording)


def write_recording(path: Path, recording: Recording) -> None:
    """Write it; the same recording always gives the same bytes."""
    path.write_bytes(gzip.compress(msgspec.json.encode(recording), mtime=0))


def prompt_of(turn: Turn, contexts: list[array[int]]) -> array[int]:
    """The prompt's token ids, after the turns whose contexts are given."""
    kept = array("i") if turn.parent is None else contexts[turn.parent][: turn.keep]
    rng = random.Random(turn.seed)
    return kept + array("i", (rng.choice(VOCABULARY) for _ in range(turn.new)))


class Script:
    """Draws turns: groups of samples that share a prompt, and what real agents do to a cache.

    Mostly a sample goes on where it was. Else it is asked the same again, branches off, rewrites
    its context, starts anew, or is aborted while it generates.
    """

    def __init__(
        self,
        seed: int,
        *,
        num_groups: int = 3,
        group_size: int = 4,
        longest: int = 900,
        scale: int = 1,
        has_aborts: bool = True,
    ) -> None:
        self._rng = random.Random(seed)
        self._longest = longest * scale
        self._scale = scale
        self._has_aborts = has_aborts
        self._groups = [self._rng.randint(120, 330) * scale for _ in range(num_groups)]
        self._last: dict[tuple[int, int], int | None] = {
            (group, sample): None for group in range(num_groups) for sample in range(group_size)
        }
        self._recent: list[tuple[int, int]] = []

    def next(self, turns: list[Turn], contexts: list[array[int]]) -> Turn:
        """The turn after these."""
        rng = self._rng
        sample = self._choose()
        last = self._last[sample]
        what = rng.random()
        max_tokens = rng.randint(1, 14) * (1 if self._scale == 1 else 4)
        abort_after = rng.randint(2, 10) if rng.random() < 0.07 and self._has_aborts else None
        if abort_after is not None:
            max_tokens = 400
        if last is None or len(contexts[last]) > self._longest:
            turn = Turn(sample[0], self._groups[sample[0]], max_tokens, abort_after=abort_after)
        elif what < 0.05:
            again = turns[last]
            turn = msgspec.structs.replace(again, max_tokens=max_tokens, abort_after=abort_after)
        else:
            keep = len(contexts[last])
            if what < 0.15:  # branches off anywhere
                keep = rng.randint(1, keep)
            elif what < 0.20:  # or off somebody else's path
                last = rng.randrange(len(turns))
                keep = rng.randint(1, len(contexts[last]))
            new = rng.randint(1, 110) * self._scale
            turn = Turn(1_000 + len(turns), new, max_tokens, last, keep, abort_after)
        self._last[sample] = len(turns)
        return turn

    def _choose(self) -> tuple[int, int]:
        """Often one of the last samples, so that others grow old in the cache."""
        rng = self._rng
        if self._recent and rng.random() < 0.6:
            sample = rng.choice(self._recent[-4:])
        else:
            sample = rng.choice(list(self._last))
        self._recent.append(sample)
        return sample
