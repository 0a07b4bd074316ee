"""When a silent model call is issued again, and which of the two is kept."""

import asyncio
from array import array

import pytest

from rolloutkit import clock
from rolloutkit.errors import ConfigError, EngineError
from rolloutkit.jobs import JobGroup
from rolloutkit.protocols import Capabilities
from rolloutkit.tail import HedgedEngine, HedgeOutcome, HedgeSettings, Hedging
from rolloutkit.types import (
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
    VersionSpan,
)

SETTINGS = HedgeSettings(model_calls=True, floor_seconds=5, patience_seconds=10, max_share=1)
PROMPT = array("i", [1, 2, 3])
STOP = 99


class Issue:
    """Says `tokens`, the last after `ends_at` seconds, the others at `heard_at`; or fails."""

    def __init__(self, tokens, heard_at=(), ends_at=None, error=None):
        self.tokens, self.heard_at, self.ends_at, self.error = tokens, heard_at, ends_at, error


class ScriptedEngine:
    """Plays one `Issue` after the other."""

    capabilities = Capabilities(token_ids=True, progress=True)

    def __init__(self, *issues):
        self.issues = list(issues)
        self.requests = []
        self.num_running = 0
        self.num_heard = 0

    async def generate(self, request, on_progress=None):
        issue = self.issues[len(self.requests)]
        self.requests.append(request)
        started = clock.now()
        self.num_running += 1
        try:
            for count, moment in enumerate(issue.heard_at, start=1):
                await asyncio.sleep(started + moment - clock.now())
                if not request.reissue:
                    self.num_heard = count
                on_progress(count)
            if issue.ends_at is None:
                await asyncio.get_running_loop().create_future()
            await asyncio.sleep(started + issue.ends_at - clock.now())
            if issue.error:
                raise issue.error
            return Completion(
                finish_reason=FinishReason.STOP,
                token_ids=array("i", issue.tokens),
                logprobs=array("f", [-1.0] * len(issue.tokens)),
                prompt_tokens=len(request.prompt.token_ids),
                versions=(VersionSpan(3, 0, len(issue.tokens)),),
            )
        finally:
            self.num_running -= 1

    def finish(self, sample_id):
        pass


class ContinuingEngine(ScriptedEngine):
    def received(self, request):
        tokens = self.issues[0].tokens[: self.num_heard]
        return Completion(
            finish_reason=FinishReason.ABORT,
            token_ids=array("i", tokens),
            logprobs=array("f", [-2.0] * len(tokens)),
        )


def play(engine, settings=SETTINGS, schema=None):
    """The completion or error of one call, when it came, and what was hedged."""
    hedges = []

    async def main():
        async with JobGroup():
            hedged = HedgedEngine(engine, Hedging(settings), hedges.append)
            request = GenerateRequest(
                sample_id=SampleId("t", 0),
                attempt=0,
                chain_index=0,
                turn=0,
                prompt=TokenPrompt(PROMPT, (STOP,)),
                sampling=SamplingParams(max_tokens=8, seed=11),
                worker="worker-0",
                json_schema=schema,
            )
            try:
                done = await hedged.generate(request)
            except EngineError as error:
                done = error
            assert engine.num_running == 0, "the loser is awaited"
            return done, clock.now()

    return *clock.run(main(), time="virtual"), hedges


def test_a_call_that_makes_progress_is_never_issued_again_however_long_it_takes():
    engine = ContinuingEngine(Issue([5] * 8, heard_at=[9.0 * k for k in range(1, 9)], ends_at=80.0))

    done, ended_at, hedges = play(engine)

    assert (len(done.token_ids), ended_at, hedges) == (8, 80.0, [])


def test_a_re_issue_goes_on_from_the_tokens_received_under_a_seed_of_its_own():
    engine = ContinuingEngine(Issue([5, 6, 7], heard_at=[1.0, 2.0]), Issue([8, STOP], ends_at=4.0))

    done, ended_at, (hedge,) = play(engine)

    again = engine.requests[1]
    assert list(again.prompt.token_ids) == [1, 2, 3, 5, 6]
    assert (again.continued, again.sampling.max_tokens, again.avoid_worker) == (2, 6, "worker-0")
    assert again.sampling.seed != 11
    assert again.request_id != engine.requests[0].request_id
    assert list(done.token_ids) == [5, 6, 8, STOP]
    assert list(done.logprobs) == [-2.0, -2.0, -1.0, -1.0]
    assert done.versions == (VersionSpan(0, 0, 2), VersionSpan(3, 2, 4))
    assert done.prompt_tokens == 3
    assert ended_at == 16.0  # silent since 2, hedged at 12
    assert hedge.outcome is HedgeOutcome.REISSUE
    assert (hedge.stalled_seconds, hedge.received_tokens, hedge.lost_tokens) == (10.0, 2, 0)
    assert hedge.prompt_tokens == 5


def test_without_tokens_to_go_on_from_the_same_seed_is_kept():
    engine = ScriptedEngine(Issue([5, 6], heard_at=[1.0]), Issue([5, 6], ends_at=1.0))

    done, _, (hedge,) = play(engine)

    assert engine.requests[1].sampling.seed == 11
    assert engine.requests[1].continued == 0
    assert list(done.token_ids) == [5, 6]
    assert hedge.lost_tokens == 1


def test_a_constrained_call_is_not_continued_inside_its_grammar():
    engine = ContinuingEngine(Issue([5, 6], heard_at=[1.0]), Issue([5, 6], ends_at=1.0))

    play(engine, schema={"enum": ["yes"]})

    assert engine.requests[1].continued == 0


def test_who_shows_life_first_is_kept_and_not_who_ends_first():
    late = Issue([5] * 8, heard_at=[12.0 + 8 * k for k in range(8)], ends_at=70.0)
    engine = ScriptedEngine(late, Issue([7, 7], ends_at=9.0))  # sent at 10, would end at 19

    done, ended_at, (hedge,) = play(engine)

    assert (list(done.token_ids), ended_at) == ([5] * 8, 70.0)
    assert hedge.outcome is HedgeOutcome.FIRST
    assert hedge.seconds == 2.0


def test_progress_of_the_re_issue_aborts_the_first_which_then_cannot_land():
    first = Issue([5, 5], ends_at=14.0)
    engine = ScriptedEngine(first, Issue([7, 7, 7], heard_at=[2.0], ends_at=40.0))

    done, ended_at, (hedge,) = play(engine)

    assert (list(done.token_ids), ended_at) == ([7, 7, 7], 50.0)
    assert hedge.outcome is HedgeOutcome.REISSUE


def test_what_was_received_whole_is_taken_although_its_end_was_not_heard_of():
    engine = ContinuingEngine(Issue([5, STOP], heard_at=[1.0, 2.0]))

    done, ended_at, _ = play(engine)

    assert (list(done.token_ids), ended_at) == ([5, STOP], 12.0)
    assert done.finish_reason is FinishReason.STOP
    assert len(engine.requests) == 1


def test_a_first_that_fails_leaves_it_to_the_re_issue():
    engine = ScriptedEngine(
        Issue([], ends_at=11.0, error=EngineError("gone")), Issue([7], ends_at=5.0)
    )

    done, ended_at, (hedge,) = play(engine)

    assert (list(done.token_ids), ended_at) == ([7], 15.0)
    assert hedge.outcome is HedgeOutcome.REISSUE


def test_a_re_issue_that_fails_leaves_it_to_the_first_which_may_be_hedged_again():
    engine = ScriptedEngine(
        Issue([5], ends_at=30.0),
        Issue([], ends_at=1.0, error=EngineError("refused")),
        Issue([7], ends_at=2.0),
    )

    done, ended_at, hedges = play(engine)

    assert (list(done.token_ids), ended_at) == ([7], 24.0)  # silent for twice as long at 22
    assert [one.outcome for one in hedges] == [HedgeOutcome.FIRST, HedgeOutcome.REISSUE]


def test_when_both_fail_the_first_error_is_told():
    engine = ScriptedEngine(
        Issue([], ends_at=12.0, error=EngineError("one")),
        Issue([], ends_at=5.0, error=EngineError("two")),
    )

    error, _, (hedge,) = play(engine)

    assert str(error) == "one"
    assert hedge.outcome is HedgeOutcome.NEITHER


def test_without_budget_a_silent_call_waits_on():
    engine = ScriptedEngine(Issue([5], ends_at=500.0), Issue([7], ends_at=1.0))
    hedging = Hedging(SETTINGS)
    hedging.of("model_call").budget._saved = -2.0

    async def main():
        async with JobGroup():
            hedged = HedgedEngine(engine, hedging, lambda hedge: None)
            request = GenerateRequest(
                sample_id=SampleId("t", 0),
                attempt=0,
                chain_index=0,
                turn=0,
                prompt=TokenPrompt(PROMPT),
                sampling=SamplingParams(),
            )
            return await hedged.generate(request)

    assert list(clock.run(main(), time="virtual").token_ids) == [5]


def test_an_engine_without_progress_is_refused_with_a_remedy():
    class Mute(ScriptedEngine):
        capabilities = Capabilities(token_ids=True)

    with pytest.raises(ConfigError, match=r"tail\.hedge\.model_calls.*would pass for a stall"):
        HedgedEngine(Mute(), Hedging(SETTINGS), lambda hedge: None)
