"""Durations in words, the same wherever a report tells one."""

from __future__ import annotations


def format_seconds(seconds: float | None) -> str:
    """A duration for people."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min {rest:02d} s"
