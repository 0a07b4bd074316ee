"""The requests that decode together: who ends when, and how many pages the next steps take.

All of them gain a token a step, so that a step costs O(1) here, and O(log n) for each that ends.
Lengths are worked out only for a request that leaves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from rolloutkit.sim.sglang.request import Request
from rolloutkit.sim.sglang.rules import Retraction, WorkerRules


class RunningBatch:
    """Invariant: `context_tokens` is the sum of the requests' KV."""

    def __init__(self, page_tokens: int, clip_new_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._clip = clip_new_tokens
        self._joins = itertools.count()
        self._requests: dict[Request, int] = {}  # the step that gives its last token
        self._ends: list[tuple[int, int, Request]] = []  # heap; old entries stay until their turn
        # What they may still say, as the step at which nothing would be left. While that is more
        # than `clip` away they count as `clip`, and wait in a heap until it is not.
        self._num_near = 0
        self._sum_near = 0
        self._far: dict[Request, None] = {}
        self._nearing: list[tuple[int, int, Request]] = []
        self._phases = [0] * page_tokens  # requests by the step, modulo pages, that needs a page
        self.step = 0  # since the start
        self.context_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def steps_left(self) -> int:
        """Steps until the next request ends; there must be one."""
        while self._requests.get(self._ends[0][2]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][0] - self.step

    def join(self, request: Request) -> None:
        """A request whose prefill gave its first token."""
        request.join_order = next(self._joins)
        request.decoded_since = self.step
        self._set_end(request, self.step + request.num_output - request.num_generated)
        self._phases[self._phase(request)] += 1
        self.context_tokens += request.num_kv
        out_at = self._out_at(request)
        if out_at - self.step > self._clip:
            self._far[request] = None
            heapq.heappush(self._nearing, (out_at, request.join_order, request))
        else:
            self._num_near += 1
            self._sum_near += out_at

    def leave(self, request: Request) -> None:
        """Take a request out and bring it up to date."""
        del self._requests[request]
        if request in self._far:
            del self._far[request]
        else:
            self._num_near -= 1
            self._sum_near -= self._out_at(request)
        steps = self.step - request.decoded_since
        self._phases[self._phase(request)] -= 1
        request.num_kv += steps
        request.num_generated += steps
        self.context_tokens -= request.num_kv

    def end_next(self, request: Request) -> None:
        """Let it end with its next token."""
        self._set_end(request, self.step + 1)

    def num_generated(self, request: Request) -> int:
        """Tokens that it has said so far."""
        return request.num_generated + self.step - request.decoded_since

    def pages(self, steps: int) -> int:
        """Pages that so many further steps take."""
        cycles, rest = divmod(steps, self._page_tokens)
        size, phases = self._page_tokens, self._phases
        start = self.step % size
        return cycles * len(self._requests) + sum(
            phases[(start + offset) % size] for offset in range(rest)
        )

    def advance(self, steps: int) -> list[Request]:
        """Let all of them decode; those that have ended, in the order in which they joined."""
        self.step += steps
        self.context_tokens += steps * len(self._requests)
        ended: list[Request] = []
        while self._ends and self._ends[0][0] <= self.step:
            at, _, request = heapq.heappop(self._ends)
            if self._requests.get(request) == at:
                self.leave(request)
                ended.append(request)
        return ended

    def promised(self, ratio: float) -> float:
        """Tokens that they may still say, and for which room is set aside."""
        while self._nearing and self._nearing[0][0] - self.step <= self._clip:
            out_at, order, request = heapq.heappop(self._nearing)
            if request in self._far and request.join_order == order:
                del self._far[request]
                self._num_near += 1
                self._sum_near += out_at
        near = self._sum_near - self._num_near * self.step
        return ratio * (near + len(self._far) * self._clip)

    def promised_to(self, request: Request, ratio: float) -> float:
        """The same for one of them."""
        return ratio * min(request.max_new - self.num_generated(request), self._clip)

    def by_worth(self, rules: WorkerRules) -> list[Request]:
        """Its requests, those that are retracted last first."""

        def worth(request: Request) -> tuple[float, ...]:
            length = (self.num_generated(request), -request.num_prompt)
            match rules.retraction:
                case Retraction.LENGTH:
                    return length
                case Retraction.PRIORITY:
                    return (request.priority, *length)
                case Retraction.YOUNGEST:
                    urgency = request.priority if rules.by_priority else 0.0
                    return (urgency, -request.join_order)

        return sorted(self, key=worth, reverse=True)

    def _out_at(self, request: Request) -> int:
        return request.max_new - request.num_generated + request.decoded_since

    def _set_end(self, request: Request, at: int) -> None:
        self._requests[request] = at
        heapq.heappush(self._ends, (at, request.join_order, request))

    def _phase(self, request: Request) -> int:
        """Its KV fills a page whenever the step is congruent to this."""
        return (request.decoded_since - request.num_kv) % self._page_tokens
