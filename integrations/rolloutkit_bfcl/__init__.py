"""BFCL v4 multi-turn as an environment: tasks, private tool instances, official score.

Data, tool classes and state comparison come from the `bfcl-eval` wheel, installed without its
dependencies (requirements/assets.txt). Its executor and runner are not used: they share state
between samples and evaluate model text.
"""

from rolloutkit_bfcl.config import BfclConfig
from rolloutkit_bfcl.documents import ToolDocuments
from rolloutkit_bfcl.environment import BfclEnvironment, bfcl_tasks
from rolloutkit_bfcl.session import BfclSession

__all__ = ["BfclConfig", "BfclEnvironment", "BfclSession", "ToolDocuments", "bfcl_tasks"]
