"""The public surface is listed, sorted, and loads."""

import importlib
import subprocess
import sys

import pytest

import rolloutkit


def test_public_names_are_sorted_and_all_load():
    assert rolloutkit.__all__ == sorted(rolloutkit.__all__)
    for name in rolloutkit.__all__:
        home = importlib.import_module(f"rolloutkit.{rolloutkit._HOME[name]}")
        assert getattr(rolloutkit, name) is getattr(home, name)


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        rolloutkit.nonsense  # noqa: B018


@pytest.mark.real_time
def test_importing_is_cheap_and_loads_nothing_heavy():
    code = (
        "import sys, time; import rolloutkit; "
        "heavy = {'torch', 'ray', 'aiohttp', 'numpy', 'hydra', 'renderers', 'rich'}; "
        "heavy &= set(sys.modules); "
        "print(heavy or 'light')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "light"
