"""Where trajectories go: files, groups for a trainer, a stream, memory, or several of these."""

from rolloutkit.sinks.groups import Group, GroupSink
from rolloutkit.sinks.jsonl import JsonlSink, read_trajectories
from rolloutkit.sinks.memory import CollectSink, TeeSink
from rolloutkit.sinks.stream import StreamSink

__all__ = [
    "CollectSink",
    "Group",
    "GroupSink",
    "JsonlSink",
    "StreamSink",
    "TeeSink",
    "read_trajectories",
]
