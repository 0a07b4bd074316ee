"""Workers whose every answer, fault and delay a test chooses."""

import asyncio
from array import array

from rolloutkit.errors import EngineError, WorkerLost
from rolloutkit.protocols import Capabilities, WorkerLoad
from rolloutkit.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
)


def request_of(index, turn=0, tokens=10, task="t", **changes):
    fields = {
        "sample_id": SampleId(task, index),
        "attempt": 0,
        "chain_index": 0,
        "turn": turn,
        "prompt": TokenPrompt(array("i", range(tokens))),
        "sampling": SamplingParams(max_tokens=8),
    }
    return GenerateRequest(**{**fields, **changes})


class FakeWorker:
    """Takes `seconds` a call, and can be down, mute, broken or without progress."""

    def __init__(self, name, seconds=1.0):
        self.name = name
        self.seconds = seconds
        self.is_down = False
        self.is_mute = False  # neither calls nor probes are answered
        self.breaks = 0  # so many calls fail
        self.num_generated = None
        self.running = {}
        self.served = []
        self.finished = []
        self.controls = []
        self.refuses_weights = False
        self.error = None
        self.version = None

    @property
    def capabilities(self):
        return Capabilities(token_ids=True, logprobs=True, cached_tokens=True)

    @property
    def num_running(self):
        return len(self.running)

    async def generate(self, request, on_progress=None):
        if self.is_down:
            raise WorkerLost(f"{self.name} refused")
        end = asyncio.get_running_loop().create_future()
        self.running[end] = request
        timer = None
        if not self.is_mute:
            timer = asyncio.get_running_loop().call_later(self.seconds, self._end, end)
        try:
            answer = await end
        finally:
            del self.running[end]
            if timer is not None:
                timer.cancel()
        if self.error is not None:
            raise self.error
        if self.breaks:
            self.breaks -= 1
            raise EngineError("broke")
        self.served.append(request)
        return answer

    def _end(self, end):
        if end in self.running and not end.done():
            end.set_result(self.answer(self.running[end]))

    def answer(self, request, count=2, reason=FinishReason.STOP):
        return Completion(
            finish_reason=reason,
            token_ids=array("i", range(100, 100 + count)),
            logprobs=array("f", [-1.0] * count),
            prompt_tokens=len(request.prompt.token_ids),
            cached_tokens=0,
            output_tokens=count,
        )

    def finish(self, sample_id):
        self.finished.append(sample_id)

    async def probe(self):
        if self.is_mute:
            await asyncio.get_running_loop().create_future()
        if self.is_down:
            raise EngineError(f"{self.name} is down")
        return WorkerLoad(num_running=self.num_running, num_generated=self.num_generated)

    def kill(self):
        self.is_down = True
        for end in self.running:
            if not end.done():
                end.set_exception(WorkerLost(f"{self.name} went down"))

    def start(self):
        """It is well again, and ends what it still has."""
        self.is_down = self.is_mute = False
        for end in self.running:
            asyncio.get_running_loop().call_later(self.seconds, self._end, end)

    async def pause(self, mode):
        self.controls.append(f"pause {mode}")
        if mode == "abort":
            for end, request in self.running.items():
                if not end.done():
                    end.set_result(self.answer(request, 3, FinishReason.ABORT))

    async def resume(self):
        self.controls.append("resume")

    async def update_weights(self, update):
        if self.refuses_weights:
            raise EngineError("no such file")
        self.controls.append(f"weights {update.version}")
