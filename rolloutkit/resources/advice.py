"""A plan in words that a person can check, and in the engines' own flags."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rolloutkit.resources.model_spec import vllm_block_tokens
from rolloutkit.resources.plan import (
    BELOW_BEST,
    COLLAPSED,
    NEARLY_BEST,
    Plan,
    Question,
    Split,
    plan,
)

SGLANG_RATIO = 0.9
"""`--mamba-full-memory-ratio` when nobody sets it (SGLang 0.5.23)."""

_BUSY = 0.8  # of what the GPU could do: beyond it recomputation cannot pay


def sglang_flags(question: Question, found: Plan) -> str:
    """Arguments of `python -m sglang.launch_server` (0.5.23) that make it use the plan."""
    deployment, split, rules = question.deployment, found.split, question.rules
    flags = [f"--tp-size {deployment.tp}"]
    if deployment.attention_dp > 1:
        flags.append(f"--dp-size {deployment.attention_dp} --enable-dp-attention")
    if deployment.pp > 1:
        flags.append(f"--pp-size {deployment.pp}")
    if found.memory_fraction is None:
        flags.append(f"--max-total-tokens {split.kv_tokens}")
    else:
        flags.append(f"--mem-fraction-static {found.memory_fraction:g}")
    if split.has_states:
        flags += _state_flags(question, split)
    if deployment.kv_dtype == "fp8":
        flags.append("--kv-cache-dtype fp8_e4m3")
    if rules.page_tokens > 1:
        flags.append(f"--page-size {rules.page_tokens}")
    flags.append(f"--max-running-requests {split.max_running * deployment.attention_dp}")
    flags.append(f"--chunked-prefill-size {rules.chunk_tokens}")
    return " ".join(flags)


def _state_flags(question: Question, split: Split) -> Iterator[str]:
    deployment, cap = question.deployment, question.rules.states_per_path
    yield f"--max-mamba-cache-size {split.slots * deployment.attention_dp}"
    if cap is not None:
        yield f"--mamba-max-states-per-path {cap}"
    if deployment.state_dtype is not None:
        yield f"--mamba-ssm-dtype {deployment.state_dtype}"


def vllm_flags(question: Question, found: Plan) -> str:
    """Arguments of `vllm serve` (0.33), whose one pool needs no split."""
    deployment = question.deployment
    flags = [f"--tensor-parallel-size {deployment.tp}"]
    if deployment.pp > 1:
        flags.append(f"--pipeline-parallel-size {deployment.pp}")
    if found.memory_fraction is not None:
        flags.append(f"--gpu-memory-utilization {found.memory_fraction:g}")
    flags.append("--enable-prefix-caching")
    if found.split.has_states:
        flags.append("--mamba-cache-mode align")
    if deployment.kv_dtype == "fp8":
        flags.append("--kv-cache-dtype fp8")
    flags.append(f"--max-num-seqs {found.split.max_running}")
    flags.append(f"--max-num-batched-tokens {question.rules.chunk_tokens}")
    return " ".join(flags)


def reasons(question: Question, found: Plan) -> list[str]:
    """Three or four sentences, each with the numbers it rests on."""
    sentences = [_what_fits(found), _split(question, found), *_how_many(found)]
    return [sentence for sentence in sentences if sentence]


def _what_fits(found: Plan) -> str:
    worker, memory = found.worker, found.worker.memory
    state = f" and one state {memory.state_bytes / 2**20:.1f} MiB" if memory.state_bytes else ""
    if memory.window_bytes:
        state += f" and the windows of a sample {memory.window_bytes / 2**20:.1f} MiB"
    return (
        f"A token takes {memory.kv_bytes_per_token:,.0f} bytes{state} on each GPU, so an idle "
        f"sample of {worker.workload.idle_context:,.0f} tokens keeps "
        f"{worker.idle_bytes / 1e9:.2f} GB and a running one of "
        f"{worker.workload.running_context:,.0f} tokens {worker.running_bytes / 1e9:.2f} GB: of "
        f"{found.pool_bytes / 1e9:.1f} GB for caches, {found.num_fit} samples fit{_spread(found)}."
    )


def _spread(found: Plan) -> str:
    deviation = found.worker.workload.context_deviation
    return f" (with room for contexts that spread by {deviation:,.0f} tokens)" if deviation else ""


def _split(question: Question, found: Plan) -> str:
    if not found.split.has_states:
        return ""
    text = (
        f"{found.split.slots} states and {found.split.kv_tokens:,} tokens of keys and values "
        f"(ratio {found.split.ratio:.2f})"
    )
    if question.slots is not None or question.ratio is not None:
        return f"The split is the one you gave: {text}."
    text = f"{text} last equally long, so that neither waits for the other"
    usual = plan(msgspec.structs.replace(question, ratio=SGLANG_RATIO), found.worker.workload)
    loss = 1 - usual.best.turns_per_second / found.best.turns_per_second
    if loss < 0.005:
        return f"{text}; the engine's default ratio of {SGLANG_RATIO} would do as well here."
    return (
        f"{text}; at the engine's default ratio of {SGLANG_RATIO} the best throughput would be "
        f"{loss:.0%} lower, at {usual.best.num_samples:.0f} samples."
    )


def _how_many(found: Plan) -> Iterator[str]:
    best, worker = found.best, found.worker
    if found.worker.workload.turns <= 1:
        why = "A sample has one turn, so that only running requests count"
    elif best.num_samples <= found.num_fit * 1.02:
        why = (
            f"A turn costs {1e3 * worker.fresh_seconds:.0f} ms of prefill when its prefix is "
            f"cached and {1e3 * (worker.fresh_seconds + worker.miss_seconds):.0f} ms when not, so "
            "that recomputing caches does not pay here"
        )
    else:
        why = (
            f"With {found.num_fit} samples the GPU would do only {found.utilization_fit:.0%} of "
            f"what it could, because samples act for {worker.workload.pauses.mean:.0f} s a turn, "
            "so that more of them pay although some caches are recomputed"
        )
    yield (
        f"{why}: throughput is best at {best.num_samples:.0f} samples, where "
        f"{best.hit_rate:.0%} of turns find their cache."
    )
    keep = (
        f"Keep {found.num_reference} alive on each worker: the fewest that reach "
        f"{NEARLY_BEST:.0%} of that throughput, and at most {BELOW_BEST:.0%} of that number"
    )
    if found.num_collapse is None:
        yield f"{keep}; more only wait, no collapse follows."
        return
    yield (
        f"{keep}; from {found.num_collapse} on caches are evicted before they are used again and "
        f"throughput falls below {COLLAPSED:.0%} ({found.margin:.2f} times the number to keep)."
    )


def vllm_note(question: Question) -> str:
    """What vLLM makes of the model's states; empty where it keeps none."""
    if not question.model.has_state:
        return ""
    block = vllm_block_tokens(question.model, question.deployment)
    return f"vLLM raises its block to {block:,} tokens to hold a state; hits are multiples of it"
