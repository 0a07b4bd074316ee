"""Many workers as one engine: sends each turn to its sample's home, and survives a worker's end.

The ledger (`Fleet`) decides where samples live; this shell sends, probes, ejects and readmits. A
turn whose worker is lost is sent to another one, whole, from the tokens of its chain: whatever the
lost worker still answers is dropped, so a turn comes back once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self

import msgspec

from rolloutkit.errors import (
    ConfigError,
    ContextFullError,
    EngineError,
    RequestError,
    RunFailed,
    WorkerLost,
    boundary,
)
from rolloutkit.jobs import background
from rolloutkit.protocols import (
    Capabilities,
    EngineControl,
    OnProgress,
    PauseMode,
    WeightUpdate,
    Worker,
    WorkerLoad,
)
from rolloutkit.routing.choice import make_policy
from rolloutkit.routing.claims import common_capabilities
from rolloutkit.routing.fleet import Fleet
from rolloutkit.routing.member import Member
from rolloutkit.routing.parts import can_go_on, full, joined, rest_of, stamped
from rolloutkit.routing.settings import RouterSettings
from rolloutkit.routing.views import OnWorkerChange, WorkerChange, WorkerView
from rolloutkit.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    TokenPrompt,
)


class Router:
    """An engine over `workers`. Enter it to have them opened and watched; leaving closes them.

    Without that they are not probed: a worker that is lost stays lost. `generate` raises RunFailed,
    which ends the run, when no worker has been there for `gone_seconds`.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        settings: RouterSettings = RouterSettings(),  # noqa: B008 - it is frozen
        *,
        seed: int = 0,
    ) -> None:
        names = [worker.name for worker in workers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            raise ConfigError(
                f"engine.workers: {twice[0]} is named twice: name each worker once"
                if twice
                else "engine.workers: expected at least one worker, got none"
            )
        self._settings = settings
        self.fleet = Fleet(names, make_policy(settings.policy), random.Random(seed))
        self._members: dict[str, Member] = {}
        for index, worker in enumerate(workers):
            self._members[worker.name] = Member(worker, index, settings)
        self._by_index = list(self._members.values())
        self._visited: dict[SampleId, set[int]] = {}  # workers that may keep something of a sample
        self._stack: AsyncExitStack | None = None
        self._capabilities: Capabilities | None = None
        self._can_send = asyncio.Event()
        self._can_send.set()
        self._idle = asyncio.Event()
        self._gone_at: float | None = None  # since when no worker is there
        self._is_paused = False
        self._num_aborts = 0  # pauses that abort calls
        self._update: WeightUpdate | None = None
        self.on_worker_change: OnWorkerChange = _ignore

    # An engine.

    @property
    def capabilities(self) -> Capabilities:
        """What all workers can."""
        if self._capabilities is None:
            self._capabilities = common_capabilities(
                [one.worker.capabilities for one in self._by_index]
            )
        return self._capabilities

    @property
    def start_seconds(self) -> float:
        """How long workers that start servers of their own may take for it."""
        return max(float(getattr(one.worker, "start_seconds", 0.0)) for one in self._by_index)

    @property
    def placement(self) -> Fleet:
        """Where samples live, for admission to ask."""
        return self.fleet

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Generate at the sample's home, or wherever it is given one when that is lost.

        Cancelling aborts the request on its worker. A turn that several workers failed raises the
        last EngineError.
        """
        parts: list[Completion] = []
        rest: GenerateRequest | None = request
        while rest is not None:
            num_aborts = self._num_aborts
            part = await self._sent(rest, on_progress)
            parts.append(part)
            was_paused = part.finish_reason is FinishReason.ABORT and num_aborts != self._num_aborts
            if not was_paused or not can_go_on(request):
                return joined(parts)
            rest = rest_of(request, parts)
        return full(parts)

    def finish(self, sample_id: SampleId) -> None:
        """Release the sample's session on every worker that it visited."""
        for index in self._visited.pop(sample_id, ()):
            self._by_index[index].worker.finish(sample_id)
        self.fleet.forget(sample_id)

    # Opening and watching.

    async def __aenter__(self) -> Self:
        """Open all workers side by side and probe each once. Raises EngineError when none is well,
        and whatever opening one raises.
        """
        stack = AsyncExitStack()
        await stack.__aenter__()
        self._stack = stack
        try:
            heard = [await self._open(member, stack) for member in self._by_index]
            for member, first in zip(self._by_index, heard, strict=True):
                await first.wait()
                if member.watch is not None and member.watch.is_done:  # it could not be opened
                    (await member.watch.outcome()).unwrap()
            if not self.fleet.is_up.any():
                raise EngineError(f"no worker answers: {', '.join(self._members)}")
        except BaseException:
            self._stack = None
            await stack.aclose()
            raise
        self._capabilities = None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def add(self, worker: Worker) -> None:
        """Let a worker join; it gets samples once it answers. One that left may come again."""
        assert self._stack is not None, "workers join an open router"
        known = self._members.get(worker.name)
        if known is not None and not known.has_left:
            raise ConfigError(f"engine.workers: {worker.name} is there already: name it once")
        index = self.fleet.join(worker.name)
        member = Member(worker, index, self._settings, is_up=False)
        self._members[worker.name] = member
        self._by_index[index:] = [member, *self._by_index[index + 1 :]]
        self._tell(member, WorkerChange.JOINED, "")
        await self._open(member, self._stack)

    async def remove(self, name: str) -> None:
        """Let a worker leave: its samples get other homes at once, its calls end by themselves."""
        member = self._members.get(name)
        if member is None or member.has_left:
            raise ConfigError(f"engine.workers: there is no {name!r}: {', '.join(self._members)}")
        member.has_left = True
        self._lose(member, WorkerChange.LEFT, "")
        await self._until_idle([member])
        if member.stack is not None:
            await member.stack.aclose()

    async def _open(self, member: Member, stack: AsyncExitStack) -> asyncio.Event:
        """Begin to open the worker and to watch it; the event says that it was probed once."""
        own = member.stack = AsyncExitStack()
        await stack.enter_async_context(own)
        heard = asyncio.Event()
        member.watch = await own.enter_async_context(
            background(self._watch(member, heard), name=f"watch {member.name}")
        )
        return heard

    async def _watch(self, member: Member, heard: asyncio.Event) -> None:
        """Keep a worker open, and probe it again and again."""
        async with AsyncExitStack() as stack:
            stack.callback(heard.set)
            if isinstance(member.worker, AbstractAsyncContextManager):
                await stack.enter_async_context(member.worker)
            while True:
                await self._look_after(member, is_first=not heard.is_set())
                heard.set()
                await asyncio.sleep(self._settings.poll_seconds)

    async def _look_after(self, member: Member, *, is_first: bool) -> None:
        """Probe a worker, and eject or readmit it."""
        load, problem = await self._probe(member)
        now = asyncio.get_running_loop().time()
        if load is not None:
            member.heard(load, now)
            if load.capacity_tokens:
                self.fleet.set_capacity(member.index, load.capacity_tokens)
        if not member.is_up:
            if member.is_well_again(is_good=load is not None) and await self._is_current(member):
                self._readmit(member)
        elif load is None and (is_first or member.failed()):
            self._eject(member, f"probe failed: {problem}")
        elif member.is_stalled(now):
            self._eject(member, f"no token for {self._settings.stall_seconds:g} s")

    async def _probe(self, member: Member) -> tuple[WorkerLoad | None, str]:
        seconds = self._settings.probe_seconds
        try:
            async with asyncio.timeout(seconds):
                with boundary(EngineError):
                    return await member.worker.probe(), ""
        except TimeoutError:
            return None, f"no answer within {seconds:g} s"
        except EngineError as error:
            return None, str(error)

    # Sending.

    async def _sent(self, request: GenerateRequest, on_progress: OnProgress | None) -> Completion:
        """One completion, from the first worker that gives one."""
        num_tries = 0
        while True:
            member = await self._home_of(request, is_first=num_tries == 0)
            try:
                completion = await self._send(member, request, on_progress)
            except (RequestError, ContextFullError):
                raise
            except EngineError as error:
                num_tries += 1
                self._on_failure(member, error)
                if num_tries >= self._settings.max_tries:
                    raise
                continue
            if num_tries:
                retries = completion.num_retries + num_tries
                completion = msgspec.structs.replace(completion, num_retries=retries)
            return completion

    async def _home_of(self, request: GenerateRequest, *, is_first: bool) -> Member:
        """Where the request goes, as soon as anything may be sent there."""
        fleet = self.fleet
        if is_first and not fleet.is_admitted(request.sample_id) and request.chain_index == 0:
            prompt = request.prompt
            tokens = len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else 0
            fleet.turn(request.sample_id, tokens)
        if not self._can_send.is_set():
            await self._until_sendable()
        index = fleet.worker_of(request.sample_id)
        if request.avoid_worker == fleet.names[index]:
            index = fleet.beside(index)
        return self._by_index[index]

    async def _send(
        self, member: Member, request: GenerateRequest, on_progress: OnProgress | None
    ) -> Completion:
        loop = asyncio.get_running_loop()
        fleet, index = self.fleet, member.index
        crowd = float(fleet.num_tokens[index])
        version = member.policy_version
        self._visited.setdefault(request.sample_id, set()).add(index)
        started = loop.time()
        fuse = asyncio.timeout(None)
        try:
            async with fuse:
                member.begin(fuse, started)
                with boundary(EngineError):
                    completion = await member.worker.generate(
                        request, member.watched(on_progress, loop.time)
                    )
        except TimeoutError:
            if not fuse.expired():
                raise
            raise WorkerLost(f"{member.name} was ejected") from None
        finally:
            member.end(fuse)
            if not member.num_calls:
                self._idle.set()
        ended = loop.time()
        member.answered(ended)
        if completion.finish_reason is not FinishReason.ABORT:
            prompt = request.prompt
            known = len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else 0
            fleet.answered(
                request.sample_id,
                index,
                ended - started,
                prompt=completion.prompt_tokens or known,
                cached=completion.cached_tokens,
                output=completion.num_tokens or 0,
                crowd=crowd,
            )
        if completion.worker is None:
            completion = msgspec.structs.replace(completion, worker=member.name)
        return stamped(completion, version)

    def _on_failure(self, member: Member, error: EngineError) -> None:
        is_known = not member.is_up  # it was ejected while the call ran
        if not is_known and (isinstance(error, WorkerLost) or member.failed()):
            self._eject(member, str(error))

    async def _until_sendable(self) -> None:
        """Wait while the router is paused, or no worker is there."""
        while not self._can_send.is_set():
            if self._gone_at is None:
                await self._can_send.wait()
                continue
            seconds = self._settings.gone_seconds
            try:
                async with asyncio.timeout_at(self._gone_at + seconds):
                    await self._can_send.wait()
            except TimeoutError:
                raise RunFailed(
                    f"no worker has been there for router.gone_seconds of {seconds:g} s: "
                    f"{', '.join(self._members)}: look at their logs"
                ) from None

    # Coming and going.

    def _eject(self, member: Member, reason: str) -> None:
        self._lose(member, WorkerChange.EJECTED, reason)
        member.eject(asyncio.get_running_loop().time())

    def _lose(self, member: Member, change: WorkerChange, reason: str) -> None:
        member.is_up = False
        self.fleet.lose(member.index)
        self._update_gates()
        self._tell(member, change, reason)

    def _readmit(self, member: Member) -> None:
        member.readmit()
        self.fleet.welcome(member.index)
        self._update_gates()
        self._tell(member, WorkerChange.READMITTED, "")

    def _update_gates(self) -> None:
        is_there = bool(self.fleet.is_up.any())
        if is_there:
            self._gone_at = None
        elif self._gone_at is None:
            self._gone_at = asyncio.get_running_loop().time()
            self._can_send.clear()  # whoever waits must hear that the clock runs
        if is_there and not self._is_paused:
            self._can_send.set()
        else:
            self._can_send.clear()

    def _tell(self, member: Member, change: WorkerChange, reason: str) -> None:
        self.on_worker_change(member.name, change, reason)

    def views(self) -> list[WorkerView]:
        """The workers as they are, for people."""
        fleet = self.fleet
        return [
            WorkerView(
                name=member.name,
                is_up=member.is_up,
                num_residents=int(fleet.num_residents[member.index]),
                num_calls=member.num_calls,
                active_tokens=int(fleet.num_tokens[member.index]),
                slowness=float(fleet.pace.factors[member.index]),
                num_ejections=member.num_ejections,
            )
            for member in self._members.values()
            if not member.has_left
        ]

    # Control.

    async def pause(self, mode: PauseMode) -> None:
        """Send nothing until `resume`. FINISH waits until every call has ended; a worker that
        cannot be paused otherwise is ejected.
        """
        self._is_paused = True
        self._update_gates()
        if mode is PauseMode.FINISH:
            await self._until_idle(self._by_index)
            return
        if mode is PauseMode.ABORT:
            self._num_aborts += 1
        for member in self._up():
            await self._control(member, lambda engine: engine.pause(mode), "cannot be paused")

    async def resume(self) -> None:
        """Send again. Idempotent."""
        for member in self._up():
            await self._control(member, lambda engine: engine.resume(), "cannot be resumed")
        self._is_paused = False
        self._update_gates()

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load other weights on every worker. One that fails is ejected, and gets them before it
        comes back. Raises EngineError when all fail.
        """
        self._update = update
        for member in self._up():
            await self._renew(member)
        if not self.fleet.is_up.any():
            raise EngineError(f"no worker took the weights of version {update.version}")

    def _up(self) -> list[Member]:
        return [member for member in self._members.values() if member.is_up]

    async def _renew(self, member: Member) -> bool:
        update = self._update
        if update is None or member.policy_version == update.version:
            return True
        if await self._control(member, lambda engine: engine.update_weights(update), "kept its"):
            member.policy_version = update.version
            return True
        return False

    async def _is_current(self, member: Member) -> bool:
        """Whether a worker that comes back has the weights of the others."""
        member.policy_version = None
        return await self._renew(member)

    async def _control(
        self, member: Member, call: Callable[[EngineControl], Awaitable[None]], failed: str
    ) -> bool:
        """Ask one worker; eject it when it does not do as asked."""
        worker = member.worker
        problem = "it has no such control"
        if isinstance(worker, EngineControl):
            try:
                with boundary(EngineError):
                    await call(worker)
                return True
            except EngineError as error:
                problem = str(error)
        if member.is_up:
            self._eject(member, f"{failed}: {problem}")
        return False

    async def _until_idle(self, members: Sequence[Member]) -> None:
        while any(member.num_calls for member in members):
            self._idle.clear()
            await self._idle.wait()


def _ignore(name: str, change: WorkerChange, reason: str) -> None:
    del name, change, reason
