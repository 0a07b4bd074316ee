import importlib.util

import msgspec
import pytest

from rolloutkit.errors import ConfigError
from rolloutkit_bfcl import BfclConfig, BfclEnvironment, bfcl_tasks, dataset
from rolloutkit_bfcl.dataset import CATEGORIES, find_entry


def test_every_category_has_200_tasks() -> None:
    tasks = bfcl_tasks(CATEGORIES)

    assert len({task.task_id for task in tasks}) == 800


def test_an_environment_gives_the_tasks_that_its_config_selects() -> None:
    config = BfclConfig(classes=("GorillaFileSystem",), limit=4, num_samples=3)

    tasks = BfclEnvironment(config).tasks()

    assert len(tasks) == 4
    for task in tasks:
        entry = find_entry(task.task_id)
        assert entry is not None
        assert entry.involved_classes == ("GorillaFileSystem",)
        assert task.num_samples == 3
        assert msgspec.json.decode(msgspec.json.encode(task.payload)) == {"id": task.task_id}


def test_tasks_can_be_chosen_by_id() -> None:
    tasks = bfcl_tasks(["multi_turn_base"], ids=["multi_turn_base_7"])

    assert [task.task_id for task in tasks] == ["multi_turn_base_7"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"categories": ("multi_turn",)},
            "no category 'multi_turn': choose from multi_turn_base, ",
        ),
        ({"classes": ("FileSystem",)}, "no class 'FileSystem': choose from GorillaFileSystem, "),
        ({"ids": ("multi_turn_base_200",)}, "no task 'multi_turn_base_200': ids are"),
        ({"ids": ("multi_turn_miss_func_1",)}, "is not of the categories multi_turn_base"),
        ({"classes": ("MathAPI",)}, "involves only MathAPI"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(config: dict[str, object], message: str) -> None:
    environment = BfclEnvironment(msgspec.convert(config, BfclConfig))

    with pytest.raises(ConfigError, match=message):
        environment.tasks()


def test_unknown_config_fields_and_bounds_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `category`"):
        msgspec.convert({"category": "multi_turn_base"}, BfclConfig)
    with pytest.raises(msgspec.ValidationError, match=r"max_steps_per_turn"):
        msgspec.convert({"max_steps_per_turn": 0}, BfclConfig)


def test_a_missing_wheel_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(  # the import system is not ours
        dataset, "find_spec", lambda name: None if name == "bfcl_eval" else find_spec(name)
    )

    with pytest.raises(ConfigError, match=r"bfcl_eval: .*--no-deps --require-hashes"):
        dataset.find_wheel()
