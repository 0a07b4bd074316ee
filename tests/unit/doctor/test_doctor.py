import asyncio
import resource
import shutil
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rolloutkit.batch import opened
from rolloutkit.config import load, make_parts
from rolloutkit.doctor import Check, Verdict, examine, examine_engine, require
from rolloutkit.errors import ConfigError, EngineError
from rolloutkit.protocols import Capabilities

SCRIPTED = ("engine=simulated", "environment=scripted", "renderer.name=none")


def verdicts(checks: list[Check]) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in checks}


def test_a_sound_config_passes_and_gives_the_parts(tmp_path):
    checks, parts = examine(load("quickstart", SCRIPTED), tmp_path)

    assert parts is not None
    assert set(verdicts(checks)) == {
        "python",
        "disk",
        "environment",
        "tasks",
        "open files",
        "renderer",
    }
    assert Verdict.FAIL not in verdicts(checks).values()
    require(checks)


def test_every_failure_is_found_at_once(tmp_path):
    config = load("quickstart", [*SCRIPTED, "tasks.file=/nowhere.jsonl"])
    config = msgspec.structs.replace(
        config,
        renderer=msgspec.structs.replace(config.renderer, name="auto", tokenizer="/nowhere.json"),
    )

    checks, parts = examine(config, tmp_path)

    failed = {check.name: check.message for check in checks if check.verdict is Verdict.FAIL}
    assert parts is None
    assert failed["tasks"].startswith("tasks.file: cannot read /nowhere.jsonl")
    assert failed["renderer"] == "renderer.tokenizer: no such file: /nowhere.json"
    with pytest.raises(ConfigError, match=r"tasks\.file: cannot read"):
        require(checks)


@pytest.mark.parametrize(
    ("free_bytes", "verdict"),
    [(1 << 20, Verdict.FAIL), (1 << 29, Verdict.WARN), (1 << 31, Verdict.OK)],
)
def test_disk_space_is_that_of_the_place_where_outputs_will_go(
    monkeypatch, tmp_path, free_bytes, verdict
):
    asked = []

    def disk_usage(place):
        asked.append(place)
        return SimpleNamespace(free=free_bytes)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)

    checks, _ = examine(load("quickstart", SCRIPTED), tmp_path / "runs" / "new")

    assert asked == [tmp_path]
    assert verdicts(checks)["disk"] is verdict


def test_too_few_open_files_are_warned_of_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))

    checks, _ = examine(
        load("quickstart", [*SCRIPTED, "environment.num_tasks=90", "admission.max_samples=80"]),
        tmp_path,
    )

    (files,) = [check for check in checks if check.name == "open files"]
    assert files.verdict is Verdict.WARN
    assert "ulimit -n 288, or lower admission.max_samples" in files.message


@pytest.mark.parametrize(
    ("capabilities", "overrides", "expected"),
    [
        (Capabilities(token_ids=True, logprobs=True), [], {"engine": "ok", "renderer": "warn"}),
        (Capabilities(), [], {"engine": "ok", "log-probs": "warn"}),
        (
            Capabilities(),
            ["sampling.logprobs=false", "run.constrain_calls=true"],
            {"engine": "ok", "tool calls": "fail"},
        ),
    ],
)
def test_the_engines_claims_are_held_against_the_config(capabilities, overrides, expected):
    config = load("quickstart", [*SCRIPTED, *overrides])
    parts = make_parts(config)._replace(engine=SimpleNamespace(capabilities=capabilities))

    assert verdicts(examine_engine(config, parts)) == expected


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (EngineError("http://x: refused"), "engine: http://x: refused"),
        (ValueError("what?"), "engine: ValueError: what\\?"),
        (ConfigError("engine.model: no such file"), "engine.model: no such file"),
    ],
)
async def test_an_engine_that_does_not_open_is_the_users_to_mend(error, message):
    @asynccontextmanager
    async def broken():
        raise error
        yield

    engine: Any = broken()
    with pytest.raises(ConfigError, match=f"^{message}$"):
        async with opened(engine, 60.0):
            pass


async def test_an_engine_that_does_not_answer_in_time_is_given_up():
    @asynccontextmanager
    async def silent():
        await asyncio.sleep(3600)
        yield

    engine: Any = silent()
    with pytest.raises(ConfigError, match=r"no answer within limits\.admin of 60 s"):
        async with opened(engine, 60.0):
            pass
