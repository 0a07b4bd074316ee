"""BFCL multi-turn as an environment, and the choice of its tasks."""

from __future__ import annotations

from collections.abc import Sequence

from rolloutkit.errors import ConfigError
from rolloutkit.types import SampleId, Task
from rolloutkit_bfcl.config import BfclConfig
from rolloutkit_bfcl.dataset import CATEGORIES, CLASSES, find_entry, load_category
from rolloutkit_bfcl.session import BfclSession
from rolloutkit_bfcl.toolbox import load_classes


class BfclEnvironment:
    """The multi-turn categories of BFCL v4. Raises ConfigError when the wheel is not installed."""

    Config = BfclConfig

    def __init__(self, config: BfclConfig = BfclConfig()) -> None:  # noqa: B008 - it is frozen
        load_classes()
        self._config = config

    @property
    def name(self) -> str:
        return "bfcl"

    def tasks(self) -> list[Task]:
        """The tasks that the configuration selects. Raises ConfigError when it selects none."""
        config = self._config
        return bfcl_tasks(
            config.categories,
            classes_only=config.classes,
            ids=config.ids,
            limit=config.limit,
            num_samples=config.num_samples,
        )

    def open(self, task: Task, sample_id: SampleId, seed: int) -> BfclSession:
        """A session for a task of `bfcl_tasks`. Tools are deterministic: no seed is needed."""
        del sample_id, seed
        return BfclSession(str(task.payload.get("id", task.task_id)), self._config)


def bfcl_tasks(
    categories: Sequence[str],
    *,
    classes_only: Sequence[str] = (),
    ids: Sequence[str] = (),
    limit: int | None = None,
    num_samples: int = 1,
) -> list[Task]:
    """Tasks of the categories, in the benchmark's order.

    `classes_only` keeps tasks that involve none but these classes, `ids` keeps these, and `limit`
    keeps the first of what is left. Raises ConfigError for an unknown name and for an empty
    selection.
    """
    _refuse_unknown("category", categories, CATEGORIES)
    _refuse_unknown("class", classes_only, CLASSES)
    entries = {id_: entry for name in categories for id_, entry in load_category(name).items()}
    for id_ in ids:
        if id_ not in entries:
            raise ConfigError(_describe_unknown(id_, categories))
    selected = [
        Task(task_id=id_, payload={"id": id_}, num_samples=num_samples)
        for id_, entry in entries.items()
        if (not ids or id_ in ids)
        and (not classes_only or set(entry.involved_classes) <= set(classes_only))
    ]
    if not selected:
        raise ConfigError(
            f"no BFCL task of {', '.join(categories)} involves only {', '.join(classes_only)}"
        )
    return selected[:limit]


def _refuse_unknown(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"BFCL has no {kind} {name!r}: choose from {', '.join(known)}")


def _describe_unknown(id_: str, categories: Sequence[str]) -> str:
    if find_entry(id_) is not None:
        return f"BFCL task {id_!r} is not of the categories {', '.join(categories)}: add its own"
    return f"BFCL has no task {id_!r}: ids are {categories[0]}_0 to {categories[0]}_199"
