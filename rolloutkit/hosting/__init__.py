"""Runs environments whose code blocks, so that the event loop never does: in threads or in
processes.

`hosted` turns a blocking environment into an ordinary one. A session answers one call at a time;
once a call was abandoned (cancelled, or overrun by a limit) the session can only be closed.
"""

from rolloutkit.hosting.child import RemoteError
from rolloutkit.hosting.hosted import Where, hosted
from rolloutkit.hosting.protocols import BlockingEnvironment, BlockingSession, is_blocking

__all__ = [
    "BlockingEnvironment",
    "BlockingSession",
    "RemoteError",
    "Where",
    "hosted",
    "is_blocking",
]
