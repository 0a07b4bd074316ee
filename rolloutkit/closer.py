"""Closes sessions apart from the samples that used them.

A session is handed over synchronously, so a cancelled sample waits for nothing; each close runs in
a job of its own, in a slot of the close stage and bounded by `limits.close`. A close that fails or
overruns is logged, and the session's place is given back all the same.
"""

from __future__ import annotations

import logging

from rolloutkit.clock import Watchdog
from rolloutkit.context import SampleContext
from rolloutkit.errors import RolloutError
from rolloutkit.jobs import GroupEnded, Job, JobGroup
from rolloutkit.protocols import EnvironmentSession

logger = logging.getLogger(__name__)


class Closer:
    """Owned by the orchestrator; its jobs live in the run's group."""

    def __init__(self, jobs: JobGroup) -> None:
        self._jobs = jobs
        self._has_abandoned = False

    def hand_over(self, context: SampleContext) -> Job[None] | None:
        """Close the attempt's session in the background, once; None if there is none to close."""
        session, context.session = context.session, None
        if session is None:
            return None
        try:
            return self._jobs.spawn(
                self._close(context, session), name=f"close {context.sample_id}"
            )
        except GroupEnded:
            if not self._has_abandoned:
                logger.warning("the run was torn down: open sessions are abandoned, not closed")
            self._has_abandoned = True
            return None

    async def close(self, context: SampleContext) -> None:
        """Close the attempt's session and wait for it. Cancelling stops the waiting, not the
        closing.
        """
        job = self.hand_over(context)
        if job is not None:
            (await job.outcome()).unwrap()

    async def _close(self, context: SampleContext, session: EnvironmentSession) -> None:
        watchdog = Watchdog()
        context.adopt(watchdog)
        try:
            await context.close(session)
        except RolloutError as error:
            logger.warning("closing the session of %s failed: %s", context.sample_id, error)
        finally:
            watchdog.close()
