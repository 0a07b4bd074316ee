"""What happened in a run: typed events, the recorder that takes them, the trace that keeps them."""

from rolloutkit.record.events import Event, Observer
from rolloutkit.record.recorder import Recorder, TraceWriter
from rolloutkit.record.trace import read_trace

__all__ = ["Event", "Observer", "Recorder", "TraceWriter", "read_trace"]
