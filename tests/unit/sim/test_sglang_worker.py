"""A simulated server's rules, one by one: what it caches, whom it takes in, what it gives up."""

import random
from array import array

import pytest

from rolloutkit.sim.sglang.batches import Pause
from rolloutkit.sim.sglang.pools import PoolExhausted
from rolloutkit.sim.sglang.request import Ending, Request
from rolloutkit.sim.sglang.rules import VLLM, Retraction, StateRules, WorkerRules
from rolloutkit.sim.sglang.worker import Worker

STEP = 1.0


class Timer:
    """Every batch takes a second."""

    def decode(self, num_running, context_tokens):
        return STEP

    def prefill(self, num_tokens, attended):
        return STEP


def ids(count, seed):
    rng = random.Random(seed)
    return array("i", (rng.randrange(10**6) for _ in range(count)))


def request_of(prompt, output, **options):
    said = prompt + ids(output, hash(prompt.tobytes()) % 1_000)
    return Request(said.tobytes(), len(prompt), **options)


def worker_of(**rules):
    return Worker(
        WorkerRules(**{"kv_tokens": 10_000, "max_context": 9_000, "overlap": False, **rules}),
        Timer(),
    )


def hybrid(slots=40, **rules):
    states = {"slots": slots, "chunk_tokens": 64, "track_tokens": 256}
    states |= rules.pop("states", {})
    return worker_of(states=StateRules(**states), **rules)


def submit(worker, request, now):
    """It comes alone: the scheduler looks before the next one."""
    worker.submit(request, now)
    worker.advance(now)


def until_idle(worker, now=0.0):
    while worker.wakes_at is not None:
        now = worker.wakes_at
        worker.advance(now)
    return now


def serve(worker, prompt, output=1, now=None, **options):
    """One request alone; what was cached of its prompt."""
    request = request_of(prompt, output, **options)
    submit(worker, request, now if now is not None else 0.0)
    until_idle(worker)
    assert request.ending is Ending.DONE
    return request


def context_of(request):
    return array("i", request.tokens)


# Attention alone.


def test_a_prompt_asked_again_leaves_one_token_to_compute():
    worker = worker_of()
    prompt = ids(100, 1)
    serve(worker, prompt)

    assert serve(worker, prompt).num_cached == 99


def test_the_last_token_said_has_no_kv_yet():
    worker = worker_of()
    first = serve(worker, ids(100, 1), 10)

    assert serve(worker, context_of(first) + ids(5, 2)).num_cached == 109


def test_pages_are_shared_whole_or_not_at_all():
    worker = worker_of(page_tokens=16)
    first = serve(worker, ids(100, 1), 10)

    assert serve(worker, context_of(first) + ids(5, 2)).num_cached == 96


def test_both_branches_stay():
    worker = worker_of()
    trunk = ids(400, 1)
    serve(worker, trunk + ids(50, 2))
    other = serve(worker, trunk + ids(50, 3))

    assert other.num_cached == 400
    assert serve(worker, trunk + ids(50, 2) + ids(9, 4)).num_cached == 450


def test_the_oldest_leaf_goes_first():
    worker = worker_of(kv_tokens=1_000, max_context=900)
    old, newer = ids(300, 1), ids(300, 2)
    serve(worker, old)
    serve(worker, newer)
    serve(worker, ids(600, 3))

    assert serve(worker, newer).num_cached == 299
    assert serve(worker, old).num_cached == 0


def test_siblings_that_come_at_once_compute_their_prompt_each():
    worker = worker_of()
    prompt = ids(100, 1)
    requests = [request_of(prompt, 2) for _ in range(3)]
    for request in requests:
        worker.submit(request, 0.0)

    until_idle(worker)

    assert [request.num_cached for request in requests] == [0, 0, 0]


def test_siblings_of_a_request_that_runs_find_its_prompt():
    worker = worker_of()
    prompt = ids(100, 1)
    requests = [request_of(prompt, 2) for _ in range(3)]
    for request in requests:
        submit(worker, request, 0.0)

    until_idle(worker)

    assert [request.num_cached for request in requests] == [0, 99, 99]


def test_with_overlap_a_prompt_is_shared_one_batch_later():
    worker = worker_of(overlap=True, chunked_prefill_tokens=100)
    prompt = ids(100, 1)
    requests = [request_of(prompt, 2) for _ in range(3)]
    for request in requests:
        worker.submit(request, 0.0)

    until_idle(worker)

    assert [request.num_cached for request in requests] == [0, 0, 99]


# States.


def test_prefill_leaves_a_state_at_the_end_of_each_chunk_on_the_grid():
    worker = hybrid(chunked_prefill_tokens=256)

    serve(worker, ids(600, 1))

    depths = sorted(node.depth for node in worker.memory.tree.states_by_age())
    assert depths == [256, 512, 512 + 64]


def test_a_prompt_below_the_grid_leaves_nothing():
    worker = hybrid()
    prompt = ids(60, 1)
    serve(worker, prompt, 30)

    assert worker.memory.tree.num_tokens == 0
    assert worker.memory.states.num_used == 0


def test_decoding_keeps_the_last_state_of_its_interval():
    worker = hybrid()
    first = serve(worker, ids(640, 1), 300)  # crosses 768, ends at 939

    assert serve(worker, context_of(first) + ids(100, 2)).num_cached == 768


def test_decoding_within_an_interval_is_computed_again():
    worker = hybrid()
    first = serve(worker, ids(640, 1), 100)

    assert serve(worker, context_of(first) + ids(100, 2)).num_cached == 640


def test_the_third_of_a_diverging_family_profits_not_the_second():
    worker = hybrid()
    trunk = ids(640, 1)
    cached = [serve(worker, trunk + ids(640, seed)).num_cached for seed in (2, 3, 4)]

    assert cached == [0, 0, 640]


def test_a_running_request_pins_its_states():
    worker = hybrid()
    first = serve(worker, ids(640, 1), 2)
    second = request_of(context_of(first) + ids(640, 2), 50)
    submit(worker, second, 0.0)
    worker.advance(worker.wakes_at)

    states = worker.memory.states
    assert worker.held().slots == 3  # the active one and two to track it
    assert worker.memory.tree.num_states == 2  # where it started from, and what it handed over
    assert states.num_used == 5
    assert worker.memory.tree.evictable_states == 1


def test_evicting_the_state_of_a_leaf_takes_its_kv_along():
    worker = hybrid(slots=3)
    first, second = ids(640, 1), ids(640, 2)
    serve(worker, first)
    serve(worker, second)  # needs three slots: the first one's state has to go

    assert worker.memory.tree.num_tokens == 640
    assert serve(worker, first + ids(64, 3)).num_cached == 0


def test_evicting_a_state_within_a_path_leaves_kv_that_is_of_no_use():
    worker = hybrid(chunked_prefill_tokens=320)
    serve(worker, ids(640, 1))
    tree = worker.memory.tree
    tree.evict_states(worker.memory.states.num_free + 1)

    assert tree.num_tokens == 640
    assert [node.depth for node in tree.states_by_age()] == [640]


def test_a_path_keeps_only_its_last_states_where_asked():
    worker = hybrid(chunked_prefill_tokens=128, states={"max_per_path": 2})

    serve(worker, ids(640, 1))

    assert sorted(node.depth for node in worker.memory.tree.states_by_age()) == [512, 640]


def test_too_few_slots_stop_the_server():
    worker = hybrid(slots=3)
    submit(worker, request_of(ids(640, 1), 5), 0.0)

    with pytest.raises(PoolExhausted, match=r"1 state slots are needed and 0 of 3 are free"):
        until_idle(worker)


def test_one_memory_for_both_gives_kv_up_for_states():
    worker = worker_of(
        kv_tokens=1_600,
        max_context=1_500,
        page_tokens=64,
        states=StateRules(unit_tokens=64, chunk_tokens=64, track_tokens=64, num_tracking=1),
        **VLLM,
    )
    for seed in range(8):
        serve(worker, ids(640, seed), 10)

    memory = worker.memory
    assert memory.kv.num_used == memory.tree.num_tokens + 64 * memory.tree.num_states
    assert memory.tree.num_evicted_states > 0


# Who is taken in.


def test_what_running_requests_may_still_say_is_set_aside():
    worker = worker_of(kv_tokens=2_000, max_context=1_900)
    first = request_of(ids(500, 1), 100, max_new=1_000)
    second = request_of(ids(900, 2), 10)
    submit(worker, first, 0.0)
    submit(worker, second, 0.0)
    worker.advance(worker.wakes_at)

    assert second.started_at is None  # 900 + 0.7 * 999 do not fit the 1,500 that are left
    until_idle(worker)
    assert second.ending is Ending.DONE


def test_nobody_overtakes_the_head_of_the_queue():
    worker = worker_of(kv_tokens=1_000, max_context=900)
    requests = [request_of(ids(600, 1), 20), request_of(ids(600, 2), 5), request_of(ids(9, 3), 5)]
    for request in requests:
        submit(worker, request, 0.0)

    until_idle(worker)

    assert 0 < requests[1].started_at <= requests[2].started_at


def test_the_more_urgent_goes_first_where_the_server_goes_by_priority():
    for by_priority, order in ((True, [0, 2, 1]), (False, [0, 1, 2])):
        worker = worker_of(max_running=1, by_priority=by_priority)
        requests = [request_of(ids(10, n), 2, priority=float(n)) for n in range(3)]
        for request in requests:
            submit(worker, request, 0.0)
        until_idle(worker)
        started = [request.started_at or 0.0 for request in requests]
        assert sorted(range(3), key=started.__getitem__) == order


def test_a_far_more_urgent_request_drives_others_out():
    worker = worker_of(max_running=1, preemption_threshold=10.0)
    slow = request_of(ids(10, 1), 50)
    urgent = request_of(ids(10, 2), 5, priority=20.0)
    submit(worker, slow, 0.0)
    worker.advance(worker.wakes_at)
    submit(worker, urgent, 5.0)

    until_idle(worker)

    assert urgent.started_at < 10
    assert slow.num_retractions == 1
    assert slow.num_generated == 50


def test_a_long_prompt_is_cut_and_the_rest_comes_first():
    worker = worker_of(chunked_prefill_tokens=100)
    long, short = request_of(ids(250, 1), 2), request_of(ids(10, 2), 2)
    submit(worker, long, 0.0)
    submit(worker, short, 0.0)

    until_idle(worker)

    assert long.started_at == 0
    assert short.started_at == 2 * STEP  # along with the last 50


# Retraction.


def retracted_by(retraction):
    worker = worker_of(
        kv_tokens=700, max_context=600, first_new_token_ratio=0.0, least_new_token_ratio=0.0,
        clip_new_tokens=0, retraction=retraction,
    )  # fmt: skip
    requests = [
        request_of(ids(200, 1), 150, priority=1.0),
        request_of(ids(260, 2), 150, priority=2.0),
        request_of(ids(100, 3), 150, priority=0.0),
    ]
    for request in requests:
        submit(worker, request, 0.0)
    while not worker.load().num_retracted_requests_total:
        worker.advance(worker.wakes_at)
    first = next(index for index, request in enumerate(requests) if request.num_retractions)
    until_idle(worker)
    assert all(request.ending is Ending.DONE for request in requests)
    return first


def test_the_shortest_output_is_retracted_and_then_the_longest_prompt():
    assert retracted_by(Retraction.LENGTH) == 1


def test_the_least_urgent_is_retracted_where_asked():
    assert retracted_by(Retraction.PRIORITY) == 2


def test_a_request_that_is_alone_and_too_long_is_given_up():
    worker = worker_of(kv_tokens=300, max_context=900, clip_new_tokens=0)
    worker.memory.kv.take(150)  # somebody else's
    request = request_of(ids(100, 1), 100)
    submit(worker, request, 0.0)

    until_idle(worker)

    assert request.ending is Ending.OUT_OF_MEMORY
    assert worker.held() == (0, 0)


def test_what_a_retracted_request_computed_is_not_shared():
    worker = worker_of()
    request = request_of(ids(500, 1), 50)
    submit(worker, request, 0.0)
    worker.advance(worker.wakes_at)
    worker.pause(Pause.RETRACT, 3.5)
    worker.advance(worker.wakes_at)

    assert worker.num_running == 0
    assert worker.memory.tree.num_tokens == 500  # the prompt, which it had shared before
    worker.resume(10.0)
    until_idle(worker)
    assert request.num_generated == 50
    assert request.num_cached == 0  # as it was when it first started


# Aborts, pauses, flushes.


def test_an_aborted_request_says_one_more_token_and_leaves_its_kv():
    worker = worker_of()
    request = request_of(ids(100, 1), 50)
    submit(worker, request, 0.0)
    worker.advance(worker.wakes_at)

    ended = worker.abort(request, 3.5)
    until_idle(worker)

    assert ended == []
    assert request.ending is Ending.ABORTED
    assert request.num_generated == 5  # one at 1, and one a second up to 5
    assert serve(worker, context_of(request)[:200], now=9.0).num_cached == 104


def test_a_waiting_request_that_is_aborted_is_gone_at_once():
    worker = worker_of(max_running=1)
    first, second = request_of(ids(100, 1), 50), request_of(ids(100, 2), 50)
    submit(worker, first, 0.0)
    submit(worker, second, 0.0)

    assert worker.abort(second, 0.5) == [second]
    assert worker.abort(second, 0.5) == []
    assert worker.num_waiting == 0


def test_a_prompt_that_is_aborted_halfway_is_dropped():
    worker = worker_of(chunked_prefill_tokens=100)
    request = request_of(ids(450, 1), 5)
    submit(worker, request, 0.0)
    worker.advance(worker.wakes_at)

    worker.abort(request, 1.5)
    until_idle(worker)

    assert request.num_generated == 0
    assert worker.held() == (0, 0)
    assert worker.memory.tree.num_tokens == 100  # the first part had been shared


def test_an_abort_pause_ends_what_runs_and_holds_what_comes():
    worker = worker_of()
    running, later = request_of(ids(100, 1), 50), request_of(ids(100, 2), 5)
    submit(worker, running, 0.0)
    worker.advance(worker.wakes_at)
    worker.pause(Pause.ABORT, 2.5)
    submit(worker, later, 2.6)
    until_idle(worker)

    assert running.ending is Ending.ABORTED
    assert later.ending is None
    worker.resume(20.0)
    until_idle(worker)
    assert later.started_at == 20.0


def test_requests_that_are_paused_in_place_go_on_where_they_were():
    worker = worker_of()
    request = request_of(ids(100, 1), 10)
    submit(worker, request, 0.0)
    worker.advance(worker.wakes_at)
    worker.pause(Pause.IN_PLACE, 3.5)
    until_idle(worker)

    assert not worker.flush()
    assert not worker.update_weights(2)
    worker.resume(100.0)
    assert until_idle(worker) == 100.0 + 6 * STEP
    assert request.version_marks == [(0, 0), (2, 4)]


def test_new_weights_empty_an_idle_cache():
    worker = worker_of()
    prompt = ids(100, 1)
    serve(worker, prompt)

    assert worker.update_weights(1)
    assert serve(worker, prompt).num_cached == 0


def test_usage_does_not_show_what_idle_samples_keep():
    worker = hybrid()
    serve(worker, ids(640, 1))

    load = worker.load()

    assert load.token_usage == 0
    assert load.mamba_usage == 0
    assert load.kv_available_tokens + load.kv_evictable_tokens == load.max_total_num_tokens
    assert load.kv_evictable_tokens == 640
    assert load.counters.prompt_tokens == 640


def test_decode_moments_give_the_step_time_back():
    worker = worker_of()
    serve(worker, ids(100, 1), 41)

    moments = worker.load().counters.decode

    assert (moments.n, moments.b, moments.bb, moments.generated) == (40, 40, 40, 40)
    assert moments.t == pytest.approx(40e6)
