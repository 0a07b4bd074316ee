"""Other people's recordings as a trace of ours.

Every format is brought to the numeric one of `tests/data` first, whose rules say what an unknown
figure becomes. The events lay each sample out as if it had lived alone: model calls of unknown
length take what the reference rates say, `service_times` is "derived" and their service time stays
unknown, so that a replay needs an engine that has a timing of its own.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.estimate import ReferenceRates
from rolloutkit.record.chains import RecordedChain, Trace, TraceTurn
from rolloutkit.record.events import (
    Action,
    AttemptStarted,
    Event,
    ModelCall,
    RunEnded,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
)
from rolloutkit.record.lives import DERIVED, TOOL
from rolloutkit.record.numeric import Fills, NumericRule, complete, lines, read_numeric
from rolloutkit.types import FinishReason, SampleId, Status, StopReason

PROGRAM = "program"
"""What stands for the environment of samples whose recording names none."""


class Format(StrEnum):
    """Where a recording comes from."""

    SHARED = "shared"  # numbers, one sample a line, as in tests/data
    OPENAI = "openai"  # message logs, {"messages": [...]} a line
    MINISWE = "miniswe"  # a trajectory of mini-swe-agent, {"messages": [...]} a file
    VERL = "verl"  # what its trainer dumps, {"input": ..., "output": ...} a line
    ATIF = "atif"  # Agent Trajectory Interchange Format, {"steps": [...]} a file


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is assumed where a recording is silent; None refuses it."""

    rule: NumericRule = NumericRule.AUTO
    fills: Fills = Fills()
    chars_per_token: Annotated[float, msgspec.Meta(gt=0)] | None = None  # of texts not counted


class Imported(msgspec.Struct, frozen=True):
    """One sample and the task that it is an attempt at."""

    task_id: str
    chain: RecordedChain


def read_foreign(path: Path, source: Format, options: ImportOptions) -> list[Imported]:
    """The samples of a foreign file. Blocks. Raises ConfigError with the line that is wrong."""
    if source is Format.SHARED:
        chains = read_numeric(path, options.rule, options.fills)
        return [Imported(chain.trace_id, chain) for chain in chains]
    imported: list[Imported] = []
    for number, document in _documents(path, source):
        try:
            imported.append(_read(document, source, f"sample-{number}", options))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigError(
                f"{path} line {number}: {error}: correct the line or leave it out"
            ) from None
    if not imported:
        raise ConfigError(f"{path} holds no sample: give another file")
    return imported


def events_of(samples: Iterable[Imported], rates: ReferenceRates) -> Iterator[Event]:
    """A whole recorded run, in the order of time."""
    indices: Counter[str] = Counter()
    events: list[Event] = []
    num_samples = 0
    for seq, sample in enumerate(samples):
        sample_id = SampleId(sample.task_id, indices[sample.task_id])
        indices[sample.task_id] += 1
        num_samples += 1
        events += _life(str(sample_id), seq, sample.chain, rates)
    events.sort(key=lambda event: event.t)
    yield RunStarted(t=0.0, num_samples=num_samples, service_times=DERIVED)
    yield from events
    yield RunEnded(t=events[-1].t if events else 0.0)


def _life(sample_id: str, seq: int, chain: RecordedChain, rates: ReferenceRates) -> Iterator[Event]:
    yield SampleAdmitted(t=0.0, sample_id=sample_id, environment=PROGRAM, seq=seq)
    yield AttemptStarted(t=0.0, sample_id=sample_id, attempt=0)
    now = 0.0
    for index, turn in enumerate(chain.turns):
        seconds = turn.output / rates.decode_tokens_per_second
        seconds += turn.new / rates.prefill_tokens_per_second
        now += seconds
        yield ModelCall(
            t=now,
            sample_id=sample_id,
            turn=index,
            seconds=seconds,
            context_tokens=turn.context,
            new_tokens=turn.new,
            output_tokens=turn.output,
            finish_reason=FinishReason.STOP,
        )
        if turn.tool_seconds:
            now += turn.tool_seconds
            yield Action(
                t=now, sample_id=sample_id, turn=index + 1, kind=TOOL, seconds=turn.tool_seconds
            )
    yield SampleEnded(
        t=now,
        sample_id=sample_id,
        environment=PROGRAM,
        status=Status.COMPLETED,
        stop_reason=StopReason.DONE,
        num_turns=len(chain.turns),
        output_tokens=sum(turn.output for turn in chain.turns),
    )


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Response(msgspec.Struct, frozen=True):
    usage: _Usage = _Usage()


class _Extra(msgspec.Struct, frozen=True):
    response: _Response = _Response()


class _Message(msgspec.Struct, frozen=True):
    """What matters of a chat message; the texts are only measured."""

    role: str
    content: Any = None
    tool_calls: list[Any] | None = None
    usage: _Usage | None = None
    extra: _Extra = _Extra()


class _Log(msgspec.Struct, frozen=True):
    messages: list[_Message]
    trace_id: str | None = None
    task_id: str | None = None
    instance_id: str | None = None  # mini-swe-agent


class _Dump(msgspec.Struct, frozen=True):
    """A sample as verl dumps it: calls of tools, if any, are inside the one text."""

    input: str
    output: str


class _Step(msgspec.Struct, frozen=True):
    source: str
    message: Any = None
    tool_calls: list[Any] | None = None
    observation: Any = None
    metrics: _Usage | None = None


class _Atif(msgspec.Struct, frozen=True):
    schema_version: str
    steps: list[_Step]
    session_id: str | None = None
    task_id: str | None = None


def _documents(path: Path, source: Format) -> Iterator[tuple[int, bytes]]:
    """Documents with the number of the line where each starts; some formats are one document."""
    numbered = list(enumerate(lines(path), start=1))
    filled = [(number, line) for number, line in numbered if line.strip()]
    is_one = (
        source in (Format.MINISWE, Format.ATIF) and len(filled) > 1 and filled[0][1].strip() == b"{"
    )
    if is_one:
        yield 1, b"".join(line for _, line in numbered)
    else:
        yield from filled


def _read(document: bytes, source: Format, name: str, options: ImportOptions) -> Imported:
    log = _log(document, source)
    trace_id = log.trace_id or log.instance_id or name
    answers = "user" if source is Format.MINISWE else "tool"
    turns = tuple(_turns(log.messages, answers, options.chars_per_token))
    chain = complete(Trace(trace_id, turns), NumericRule.PLAIN, options.fills)
    return Imported(log.task_id or trace_id, chain)


def _log(document: bytes, source: Format) -> _Log:
    """The document as messages. Raises ValueError."""
    match source:
        case Format.ATIF:
            atif = msgspec.json.decode(document, type=_Atif)
            if not atif.schema_version.startswith("ATIF-v1."):
                raise ValueError(f"schema_version: expected ATIF-v1.x, got {atif.schema_version!r}")
            return _Log(list(_messages_of(atif)), trace_id=atif.session_id, task_id=atif.task_id)
        case Format.VERL:
            dump = msgspec.json.decode(document, type=_Dump)
            messages = [_Message("user", dump.input), _Message("assistant", dump.output)]
            return _Log(messages, task_id=f"prompt-{zlib.crc32(dump.input.encode()):08x}")
        case _:
            return msgspec.json.decode(document, type=_Log)


def _messages_of(atif: _Atif) -> Iterator[_Message]:
    for step in atif.steps:
        if step.source != "agent":
            yield _Message(step.source, step.message)
            continue
        yield _Message("assistant", step.message, step.tool_calls, step.metrics)
        if step.tool_calls:
            yield _Message("tool", step.observation)


def _turns(
    messages: list[_Message], answers: str, chars_per_token: float | None
) -> Iterator[TraceTurn]:
    """A turn for each assistant message. What the server counted goes before what texts measure."""

    def measured(*texts: object) -> int | None:
        if chars_per_token is None:
            return None
        return max(1, round(sum(map(_num_chars, texts)) / chars_per_token))

    shown: list[object] = []
    said: int | None = 0  # prompt and completion of the call before
    for index, message in enumerate(messages):
        if message.role != "assistant":
            shown.append(message.content)
            continue
        usage = message.usage or message.extra.response.usage
        new = measured(*shown)
        if usage.prompt_tokens is not None and said is not None:
            new = max(1, usage.prompt_tokens - said)
        output = usage.completion_tokens
        if output is None:
            output = measured(message.content, message.tool_calls)
        follower = messages[index + 1].role if index + 1 < len(messages) else None
        yield TraceTurn(
            prompt_tokens_new=new,
            output_tokens=output,
            tool="unknown" if follower == answers else None,
            context_tokens=usage.prompt_tokens,
        )
        known = usage.prompt_tokens
        said = None if known is None or output is None else known + output
        shown = []


def _num_chars(content: object) -> int:
    """Characters of a message's content, in whatever form it comes."""
    if content is None:
        return 0
    return len(content) if isinstance(content, str) else len(msgspec.json.encode(content))
