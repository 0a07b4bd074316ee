"""Runs every code block of the README, in order, as a reader would: from the root of the
repository.

`make run`, `make test` and what needs `make servers` are stages of CI by themselves. Run it with
the Python of the environment that `make` made; `.venv` in a command stands for that environment.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(sys.prefix)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 180  # for one block
# What a block starts ends with it.
_PRELUDE = "set -m\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
OWN_STAGES = ("make run", "make test", "make servers")


def run_block(language: str, text: str) -> int:
    """Exit status of one block. A shell block stops at its first failing command."""
    if language == "python":
        command = [sys.executable, "-c", text]
    else:
        text = text.replace(".venv/bin", str(ENVIRONMENT / "bin"))
        command = ["bash", "-euo", "pipefail", "-c", _PRELUDE + text]
    return subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=False).returncode


def main() -> int:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    assert blocks, "the README has no code blocks?"
    for language, text in blocks:
        if text.startswith(OWN_STAGES):
            continue
        print(f"--- {language}\n{text}", flush=True)
        if status := run_block(language, text):
            print(f"--- failed with exit status {status}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
