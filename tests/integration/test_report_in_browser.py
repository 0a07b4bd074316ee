import shutil
import subprocess
from pathlib import Path

import pytest

from rolloutkit.cli import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LOAD = (
    "engine=simulated",
    "environment=scripted",
    "renderer.name=none",
    "run.time=virtual",
    "environment.num_tasks=10",
    "environment.num_samples=2",
    "environment.step_faults.crash=0.02",
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
    "--dump-dom",
)

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


def rendered(page: Path, profile: Path) -> str:
    """The page's elements after its script ran; fails on anything that the script complained of."""
    assert CHROMIUM is not None
    shown = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", page.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [line for line in shown.stderr.splitlines() if ":CONSOLE" in line] == []
    return shown.stdout


@pytest.mark.timeout(90)
def test_report_draws_itself_without_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    main(["run", *LOAD, "output.dir=mine", "--quiet"])

    shown = rendered(tmp_path / "mine" / "report.html", tmp_path / "profile")

    assert "<h1>20 samples in " in shown
    assert "<canvas" in shown
    for title in ("Samples alive", "Pools", "The last samples", "Distributions", "How samples"):
        assert title in shown
    assert "NaN" not in shown


@pytest.mark.timeout(90)
def test_comparison_draws_itself_without_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for order in ("fifo", "caas"):
        main(["run", *LOAD, f"actions.order={order}", f"output.dir={order}", "--quiet"])

    assert main(["report", "fifo", "caas", "--html", "both.html"]) == 0

    shown = rendered(tmp_path / "both.html", tmp_path / "profile")
    assert "<h1>2 runs side by side</h1>" in shown
    assert shown.count('class="line ') == 2
    assert "makespan" in capsys.readouterr().out


@pytest.mark.timeout(90)
def test_report_of_an_interrupted_start_draws_itself_too(tmp_path):
    from rolloutkit.record.events import RunStarted
    from rolloutkit.report.html import write_html
    from rolloutkit.report.statistics import RunStatistics

    write_html([RunStarted(t=0.0)], RunStatistics().summary(), tmp_path / "report.html")

    shown = rendered(tmp_path / "report.html", tmp_path / "profile")

    assert "nothing to judge" in shown
    assert "NaN" not in shown
