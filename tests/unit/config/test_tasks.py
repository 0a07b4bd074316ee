import pytest

from rolloutkit.config.tasks import read_tasks, tasks_of
from rolloutkit.errors import ConfigError
from rolloutkit.sim import ScriptedConfig, ScriptedEnvironment
from rolloutkit.types import Task


def test_a_file_gives_one_task_per_line_and_blank_lines_nothing(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"task_id": "a", "payload": {"x": [1]}, "num_samples": 2}\n\n{"task_id": "b"}')

    assert read_tasks(path) == [
        Task(task_id="a", payload={"x": [1]}, num_samples=2),
        Task(task_id="b"),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"task_id": "a"}', "{broken"], ":2: not a task: JSON is malformed"),
        (['{"task": "a"}'], ":1: not a task: Object contains unknown field `task`"),
        (["", '{"payload": {}}'], ":2: not a task: Object missing required field `task_id`"),
        (['{"task_id": 3}'], ":1: not a task: Expected `str`, got `int` at `task_id`"),
        (['{"task_id": "a", "num_samples": 0}'], ":1: num_samples: expected at least 1, got 0"),
        (
            ['{"task_id": "a"}', "", '{"task_id": "a"}'],
            ":3: task_id 'a' is that of line 1 too: ids must be unique",
        ),
    ],
)
def test_a_broken_line_is_named_by_file_and_number(tmp_path, lines, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines))

    with pytest.raises(ConfigError) as caught:
        read_tasks(path)

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"tasks\.file: cannot read .*No such file"):
        read_tasks(tmp_path / "none.jsonl")


def test_the_environments_own_tasks_are_used_without_a_file():
    environment = ScriptedEnvironment(ScriptedConfig(num_tasks=2))

    tasks = tasks_of(environment, None, num_samples=3)

    assert [(task.task_id, task.num_samples) for task in tasks] == [("task-0", 3), ("task-1", 3)]


def test_an_environment_without_tasks_needs_a_file():
    with pytest.raises(ConfigError, match=r"tasks\.file: not set, and object has no tasks\(\)"):
        tasks_of(object(), None, None)


def test_no_tasks_and_doubled_tasks_are_refused(tmp_path):
    class Doubling:
        def tasks(self):
            return [Task(task_id="a"), Task(task_id="a")]

    (tmp_path / "empty.jsonl").write_text("\n")

    with pytest.raises(ConfigError, match="two tasks have the id 'a'"):
        tasks_of(Doubling(), None, None)
    with pytest.raises(ConfigError, match="holds no task"):
        tasks_of(Doubling(), str(tmp_path / "empty.jsonl"), None)
