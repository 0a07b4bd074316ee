"""`rolloutkit plan model=... gpu=... workload=...`: how many samples, which split, which flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.cli.plan_plot import plan_plot
from rolloutkit.config.plan import load_plan
from rolloutkit.errors import ConfigError
from rolloutkit.resources import bundled_models
from rolloutkit.resources.advice import reasons, sglang_flags, vllm_flags, vllm_note
from rolloutkit.resources.plan import Plan, Question, plan
from rolloutkit.resources.steady import Point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="model, gpu, tp, workload=TRACE or turns, new_tokens, output_tokens, act_seconds, ... "
        "(docs/resources.md)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curve as SVG")
    parser.add_argument("--models", action="store_true", help="print the bundled models' names")


def main(arguments: argparse.Namespace) -> int:
    """Do it. Raises ConfigError, and then nothing is written."""
    if arguments.models:
        sys.stdout.write("\n".join(bundled_models()) + "\n")
        return ExitCode.OK
    options = load_plan(arguments.settings)
    question = options.question()
    found = plan(question, options.load_workload())
    if arguments.plot is not None:
        _write(arguments.plot, plan_plot(found))
    if arguments.json:
        encoded = msgspec.json.encode(_document(question, found), order="deterministic")
        sys.stdout.write(msgspec.json.format(encoded).decode() + "\n")
    else:
        _show(question, found)
    return ExitCode.OK


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"--plot: cannot write {path}: {error.strerror}") from None


class PlanPoint(msgspec.Struct, frozen=True):
    """A steady state, as `--json` prints it. Rates are per second of one worker."""

    num_samples: float
    output_tokens_per_second: float
    hit_rate: float
    num_running: float
    num_waiting: float
    prefill_share: float


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints; samples, slots and tokens are per worker, bytes per GPU."""

    model: str
    gpu: str
    kv_bytes_per_token: float
    state_bytes_per_sequence: float
    pool_bytes: float
    memory_fraction: float | None
    slots: int
    kv_tokens: int
    ratio: float
    max_running: int
    num_fit: int
    num_best: int
    num_reference: int
    num_collapse: int | None
    margin: float | None
    num_workers: int
    num_reference_total: int
    utilization: float
    best: PlanPoint
    reference: PlanPoint
    reasons: list[str]
    sglang: str
    vllm: str
    curve: list[PlanPoint]
    is_verified: bool  # whether all facts of the model were read in its configuration


def _document(question: Question, found: Plan) -> PlanDocument:
    memory, split = found.worker.memory, found.split

    def shown(point: Point) -> PlanPoint:
        return PlanPoint(
            point.num_samples,
            point.turns_per_second * found.worker.workload.output_tokens,
            point.hit_rate,
            point.num_running,
            point.num_waiting,
            point.prefill_share,
        )

    return PlanDocument(
        model=question.model.name,
        gpu=question.gpu.name,
        kv_bytes_per_token=memory.kv_bytes_per_token,
        state_bytes_per_sequence=memory.state_bytes,
        pool_bytes=found.pool_bytes,
        memory_fraction=found.memory_fraction,
        slots=split.slots,
        kv_tokens=split.kv_tokens,
        ratio=split.ratio,
        max_running=split.max_running,
        num_fit=found.num_fit,
        num_best=int(found.best.num_samples),
        num_reference=found.num_reference,
        num_collapse=found.num_collapse,
        margin=found.margin,
        num_workers=found.num_workers,
        num_reference_total=found.total,
        utilization=found.utilization,
        best=shown(found.best),
        reference=shown(found.reference),
        reasons=reasons(question, found),
        sglang=sglang_flags(question, found),
        vllm=vllm_flags(question, found),
        curve=[shown(point) for point in found.curve()],
        is_verified=question.model.is_verified,
    )


def _show(question: Question, found: Plan) -> None:
    console = Console(highlight=False)
    deployment, gpu = question.deployment, question.gpu.name
    workers = "1 worker" if found.num_workers == 1 else f"{found.num_workers} workers"
    gpus = f"{deployment.tp * deployment.pp} x {gpu} a replica, {workers}"
    console.print(f"{question.model.name} on {gpus}", soft_wrap=True)
    if not question.model.is_verified:
        console.print(f"unverified: {question.model.source}", soft_wrap=True)
    table = Table("", "per worker", "all workers", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in _rows(found):
        table.add_row(*row)
    console.print(table)
    console.print()
    for sentence in reasons(question, found):
        console.print(sentence)
    note = vllm_note(question)
    lines = ["", "SGLang:", f"  {sglang_flags(question, found)}"]
    lines += ["vLLM:", f"  {vllm_flags(question, found)}", *([f"  ({note})"] if note else [])]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _rows(found: Plan) -> Iterator[tuple[str, str, str]]:
    workers, reference = found.num_workers, found.reference
    tokens = reference.turns_per_second * found.worker.workload.output_tokens
    yield "samples to keep alive", str(found.num_reference), str(found.total)
    yield "samples that fit", str(found.num_fit), str(found.num_fit * workers)
    best = int(found.best.num_samples)
    yield "best throughput at", str(best), str(best * workers)
    collapse = found.num_collapse
    all_collapse = "none" if collapse is None else str(collapse * workers)
    yield "collapse from", "none" if collapse is None else str(collapse), all_collapse
    yield "output tokens a second", f"{tokens:,.0f}", f"{tokens * workers:,.0f}"
    yield "turns that find their cache", f"{reference.hit_rate:.0%}", ""
    yield "of what the GPU could do", f"{found.utilization:.0%}", ""
    if found.split.has_states:
        yield "states", str(found.split.slots), ""
        yield "bytes of states / of tokens", f"{found.split.ratio:.2f}", ""
    yield "tokens of keys and values", f"{found.split.kv_tokens:,}", ""
    yield "running requests at most", str(found.split.max_running), ""
