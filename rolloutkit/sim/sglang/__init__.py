"""SGLang, and vLLM, in virtual time: their caches token for token, their schedulers step by step.

    ServersEngine ► Station ► Worker ─┬► Memory ► RadixTree, Pool
                                      └► RunningBatch, PrefillBudget

`docs/simulation.md` says what is modelled, and how it was held against real servers.
"""

from rolloutkit.sim.sglang.batches import Pause
from rolloutkit.sim.sglang.engine import ServersEngine
from rolloutkit.sim.sglang.load import Load
from rolloutkit.sim.sglang.rules import StateRules, WorkerRules
from rolloutkit.sim.sglang.settings import Server, ServerSettings, server_of
from rolloutkit.sim.sglang.worker import Worker

__all__ = [
    "Load",
    "Pause",
    "Server",
    "ServerSettings",
    "ServersEngine",
    "StateRules",
    "Worker",
    "WorkerRules",
    "server_of",
]
