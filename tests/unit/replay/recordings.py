"""Small recordings, written event by event."""

import gzip
import json

from rolloutkit.record import TraceWriter
from rolloutkit.record.events import (
    Action,
    ActionOutcome,
    AttemptStarted,
    ModelCall,
    RunEnded,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
)
from rolloutkit.types import Status, StopReason


def call(sample_id, t, seconds=1.0, **fields):
    sizes = {"context_tokens": 100, "new_tokens": 10, "output_tokens": 5, **fields}
    return ModelCall(t=t, sample_id=sample_id, seconds=seconds, **sizes)


def act(sample_id, t, seconds=1.0, kind="tool", outcome=ActionOutcome.OK, **fields):
    return Action(t=t, sample_id=sample_id, seconds=seconds, kind=kind, outcome=outcome, **fields)


def life(sample_id, *events, environment="program", **ended):
    """The events of one sample around those given."""
    how = {"status": Status.COMPLETED, "stop_reason": StopReason.DONE, **ended}
    t = max((event.t for event in events), default=0.0)
    return [
        SampleAdmitted(t=0.0, sample_id=sample_id, environment=environment, seq=0),
        AttemptStarted(t=0.0, sample_id=sample_id, attempt=0),
        *events,
        SampleEnded(t=t, sample_id=sample_id, environment=environment, **how),
    ]


def write(path, *lives, started=None):
    """A complete trace of the lives, one after the other."""
    with TraceWriter(path) as writer:
        writer(started or RunStarted(t=0.0))
        for event in [event for events in lives for event in events]:
            writer(event)
        writer(RunEnded(t=100.0))
    return path


def write_lines(path, *documents):
    """JSON lines, gzipped; text as it is."""
    with gzip.open(path, "wt") as file:
        for document in documents:
            file.write((document if isinstance(document, str) else json.dumps(document)) + "\n")
    return path


def turn(**fields):
    return {
        "prompt_tokens_new": 100,
        "output_tokens": 10,
        "tool": "bash",
        "tool_seconds": 1.5,
        **fields,
    }
