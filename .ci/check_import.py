"""Checks the installed package: what `import rolloutkit` costs and what it drags in."""

import importlib.resources
import subprocess
import sys

MAX_CPU_SECONDS = 0.3
UNWANTED = {"torch", "ray"}
PROBE = """
import sys, time
began = time.process_time()
import rolloutkit
print(time.process_time() - began, *{name.partition(".")[0] for name in sys.modules})
"""


def import_once() -> tuple[float, set[str]]:
    output = subprocess.run(
        [sys.executable, "-c", PROBE], check=True, capture_output=True, text=True
    ).stdout
    seconds, *modules = output.split()
    return float(seconds), set(modules)


def main() -> None:
    cpu_seconds, modules = min((import_once() for _ in range(3)), key=lambda result: result[0])
    if unwanted := UNWANTED & modules:
        sys.exit(
            f"import rolloutkit imports {', '.join(sorted(unwanted))}: import it where it is used"
        )
    if cpu_seconds >= MAX_CPU_SECONDS:
        sys.exit(
            f"import rolloutkit took {cpu_seconds:.3f} s of CPU time, the limit is"
            f" {MAX_CPU_SECONDS} s: see python -X importtime"
        )
    package = importlib.resources.files("rolloutkit")
    if not package.joinpath("configs").is_dir():
        sys.exit("the wheel has no rolloutkit/configs: see force-include in pyproject.toml")
    if not package.joinpath("report", "assets", "page.html").is_file():
        sys.exit("the wheel has no rolloutkit/report/assets: see packages in pyproject.toml")
    print(f"import rolloutkit: {cpu_seconds:.3f} s of CPU time")


if __name__ == "__main__":
    main()
