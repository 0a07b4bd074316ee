"""Stand-ins for what is slow or costly in reality: environments that follow a script."""

from rolloutkit.sim.scripted import (
    Act,
    Fault,
    FaultRates,
    Script,
    ScriptedConfig,
    ScriptedEnvironment,
    ScriptedSession,
    Spread,
    Turn,
    show,
)

__all__ = [
    "Act",
    "Fault",
    "FaultRates",
    "Script",
    "ScriptedConfig",
    "ScriptedEnvironment",
    "ScriptedSession",
    "Spread",
    "Turn",
    "show",
]
