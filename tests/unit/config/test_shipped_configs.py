"""The shipped files document every knob with its default: they must agree with the Structs."""

import msgspec
import pytest
import yaml

from rolloutkit.config.compose import shipped_configs
from rolloutkit.config.replay import BatchOptions, ReplaySections
from rolloutkit.config.schema import Sections
from rolloutkit.engines.llamacpp import LlamaCppConfig
from rolloutkit.engines.openai import OpenAIConfig
from rolloutkit.engines.simulated import SimulatedConfig
from rolloutkit.sim import ScriptedConfig
from rolloutkit.sim.faults import FaultConfig
from rolloutkit.sim.recorded import RecordedConfig
from rolloutkit.sim.sglang.speaking import SglangConfig
from rolloutkit.sim.speaking import SpeakingConfig
from rolloutkit.sim.uncontended import UncontendedConfig
from rolloutkit_bfcl import BfclConfig

CONFIGS = shipped_configs()


def read(name: str) -> dict:
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())


def test_base_lists_every_setting_with_its_default():
    written = read("base")

    assert msgspec.convert(written, Sections) == Sections()
    assert keys(written) == keys(msgspec.to_builtins(Sections()))


@pytest.mark.parametrize(
    ("name", "struct", "required"),
    [
        ("engine/llamacpp", LlamaCppConfig, {}),
        ("engine/openai", OpenAIConfig, {"base_url": "???"}),
        ("engine/sim_reference", SpeakingConfig, {}),
        ("engine/sim_sglang", SglangConfig, {}),
        ("engine/recorded", RecordedConfig, {}),
        ("engine/simulated", SimulatedConfig, {}),
        ("engine/uncontended", UncontendedConfig, {}),
        ("environment/scripted", ScriptedConfig, {}),
        ("environment/bfcl", BfclConfig, {}),
    ],
)
def test_group_lists_every_field_of_its_class_with_its_default(name, struct, required):
    written = {
        key: value for key, value in read(name).items() if key not in ("kind", "target", "where")
    }

    assert msgspec.convert(written, struct) == struct(**required)
    assert keys(written) == keys(msgspec.to_builtins(struct(**required)))


def test_replay_lists_every_setting_of_its_own_with_its_default():
    written = read("replay")

    assert msgspec.convert(written["batch"], BatchOptions) == BatchOptions()
    assert keys(written["batch"]) == keys(msgspec.to_builtins(BatchOptions()))
    assert msgspec.convert(written["faults"], FaultConfig) == FaultConfig()
    assert keys(written["faults"]) == keys(msgspec.to_builtins(FaultConfig()))
    assert written["parking"] is ReplaySections(trace="any").parking


def keys(values: dict) -> set[str]:
    """Dotted keys, as deep as both sides must agree."""
    return {
        f"{key}.{inner}" if inner else key
        for key, value in values.items()
        for inner in (keys(value) if isinstance(value, dict) and value else {""})
    }
