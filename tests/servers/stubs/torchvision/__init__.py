"""Stands in for torchvision, which SGLang imports always and uses for images only.

The package index has CUDA builds of it, which do not load beside a CPU torch. For sglang==0.5.23.
"""

import importlib.machinery
import sys
import types
from unittest.mock import MagicMock

__version__ = "0.0.0"

_PARTS = (
    "io",
    "models",
    "ops",
    "transforms",
    "transforms.functional",
    "transforms.v2",
    "transforms.v2.functional",
    "utils",
)


class _Part(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []  # a package, so that more can be imported from it

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


for _name in _PARTS:
    _part = _Part(f"{__name__}.{_name}")
    _part.__spec__ = importlib.machinery.ModuleSpec(_part.__name__, None)
    sys.modules[_part.__name__] = _part
    _owner, _, _attribute = _part.__name__.rpartition(".")
    setattr(sys.modules[_owner], _attribute, _part)
