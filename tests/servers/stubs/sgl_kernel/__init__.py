"""Stands in for SGLang's compiled CPU kernels, of which the package index has no wheel.

SGLang imports the names below and calls none of them on the path of a Llama model with the
`torch_native` attention backend; a call says which kernel is missing. For sglang==0.5.23.
"""

import importlib.machinery
import sys
import types
from unittest.mock import MagicMock

__version__ = "0.0.0+stub"

_PARTS = (
    "elementwise",
    "flash_attn",
    "gemm",
    "kvcacheio",
    "mamba",
    "moe",
    "quantization",
    "sampling",
    "scalar_type",
    "speculative",
    "top_k",
    "utils",
)


def _missing(name):
    def kernel(*arguments, **options):
        raise NotImplementedError(f"the stub of sgl_kernel has no {name}")

    return kernel


class _Part(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []  # a package, so that more can be imported from it

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(f"{self.__name__}.{name}")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(name)


for _name in _PARTS:
    _part = _Part(f"{__name__}.{_name}")
    _part.__spec__ = importlib.machinery.ModuleSpec(_part.__name__, None)
    sys.modules[_part.__name__] = _part

scalar_types = MagicMock()  # compared with and looked up in at import time
sys.modules[f"{__name__}.scalar_type"].scalar_types = scalar_types
sys.modules[f"{__name__}.scalar_type"].ScalarType = MagicMock()
