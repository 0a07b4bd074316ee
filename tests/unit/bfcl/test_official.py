"""Our verdicts beside those of the wheel's own checker, which evaluates the calls as text.

All text that it evaluates here comes from the benchmark's ground truths.
"""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as official
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

from rolloutkit.types import ToolCall
from rolloutkit_bfcl.checker import check
from rolloutkit_bfcl.dataset import CATEGORIES, Entry, load_category
from rolloutkit_bfcl.toolbox import open_toolboxes
from tests.unit.bfcl.play import Turns, ground_truth, open_session, play

ENTRIES = [entry for category in CATEGORIES for entry in load_category(category).values()]


@pytest.fixture
def clean_globals() -> Iterator[None]:
    """Forget the instances that the official executor keeps in its module."""
    before = set(vars(multi_turn_utils))
    yield
    for name in set(vars(multi_turn_utils)) - before:
        delattr(multi_turn_utils, name)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_all_800_ground_truths_are_valid_through_our_session() -> None:
    assert len(ENTRIES) == 800
    for entry in ENTRIES:
        session = open_session(entry.id)
        observation = await play(session, ground_truth(entry))
        score = await session.score()
        await session.close()

        assert observation.done
        assert score.value == 1.0, (entry.id, score.details)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("clean_globals")
@pytest.mark.parametrize("corrupt", ["drop", "empty", "repeat", "change", "swap"])
def test_verdicts_on_corrupted_episodes_are_the_official_ones(corrupt: str) -> None:
    rng = random.Random(corrupt)
    verdicts = {True: 0, False: 0}
    for entry in rng.sample(ENTRIES, 60):
        turns = _corrupted(ground_truth(entry), corrupt, rng)

        ours, theirs = check(entry, turns), _official(entry, turns, f"{corrupt}_{entry.id}")

        assert ours.error_type == theirs.get("error_type", ""), entry.id
        assert ours.error_message == theirs.get("error_message", ""), entry.id
        verdicts[ours.is_valid] += 1
    assert verdicts[False] > 0


@pytest.mark.usefixtures("clean_globals")
def test_results_read_as_those_of_the_official_executor() -> None:
    for entry in ENTRIES[::16]:
        (toolbox,) = open_toolboxes(entry)
        calls = [call for turn in ground_truth(entry) for step in turn for call in step]
        calls += [ToolCall("no_such_tool", {}), ToolCall(calls[0].name, {"no_such_argument": 1})]

        ours = [toolbox.call(call) for call in calls]
        theirs, _ = multi_turn_utils.execute_multi_turn_func_call(
            [_text(call) for call in calls],
            entry.initial_config,
            list(entry.involved_classes),
            "executor",
            entry.id,
            long_context=entry.is_long_context,
        )

        assert ours == theirs


def _corrupted(turns: Turns, how: str, rng: random.Random) -> Turns:
    spots = [index for index, turn in enumerate(turns) if turn]
    index = rng.choice(spots)
    calls = list(turns[index][0])
    spot = rng.randrange(len(calls))
    match how:
        case "drop":
            del calls[spot]
        case "empty":
            calls = []
        case "repeat":
            calls.insert(spot, calls[spot])
        case "swap":
            rng.shuffle(calls)
        case _:
            arguments = dict(calls[spot].arguments)
            if arguments:
                name = rng.choice(sorted(arguments))
                arguments[name] = "something else" if isinstance(arguments[name], str) else 77
            calls[spot] = ToolCall(calls[spot].name, arguments)
    changed = [list(turn) for turn in turns]
    changed[index] = [tuple(calls)] if calls else []
    return changed


def _official(entry: Entry, turns: Turns, name: str) -> dict[str, Any]:
    decoded = [[[_text(call) for call in step] for step in turn] for turn in turns]
    raw = msgspec.to_builtins(entry)
    return official.multi_turn_checker(decoded, raw["ground_truth"], raw, "", name)


def _text(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})"
