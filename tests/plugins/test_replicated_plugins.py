"""What plugins of one worker come to know, in another: at once, for a newcomer, and after a death."""

import asyncio
import logging
import pickle

import numpy as np
import pytest
from plugin_fakes import a_cycle, decide, make, pool, signals

from epp.endings import EndCause
from epp.inference.request import Usage
from epp.ledger import Ledger, Outcome
from epp.scheduling.data import PREFIX_MATCH, TOKENIZED_PROMPT, TokenizedPrompt
from epp.scheduling.plugin import IgnoredParameters, Replicated, Services
from epp.server.workers.batches import Clockwork
from epp.server.workers.replicas import Replicas

POOL = pool(signals(restarts=0), signals(restarts=0), signals(restarts=0))
PROMPT = bytes(range(256)) * 40  # 40 blocks of 64 tokens


class Broken(Replicated):
    plugin_type = "broken"

    def absorb(self, change, peer, snapshot):
        raise ValueError("secret")


class Worker:
    """Plugins of one worker. What they tell is heard by `peers` with the next `turn`."""

    def __init__(self, number):
        self.number = number
        self.prefixes = make("approx-prefix-cache-producer")
        self.sessions = make("session-affinity-scorer", {"strategy": "session_id"})
        self.cold = make("no-hit-lru-scorer")
        self.latency = make("predicted-latency-producer")
        self.broken = Broken("broken", IgnoredParameters(), Services(Ledger()))
        self.pool = POOL
        self.peers = []
        self.due = []
        plugins = [self.broken, make("queue-scorer"), self.prefixes, self.sessions, self.cold, self.latency]
        clockwork = Clockwork(lambda: 0.0, lambda _, call: self.due.append(call))
        self.replicas = Replicas(plugins, self.send, lambda: self.pool.snapshot, clockwork)

    def send(self, changes):
        for peer in self.peers:
            peer.replicas.absorb(pickle.loads(pickle.dumps(changes)), self.number)

    def turn(self):
        due, self.due = self.due, []
        for call in due:
            call()

    def with_prompt(self, prompt=PROMPT, **kwargs):
        cycle = a_cycle(prompt, **kwargs)
        cycle.publish(TOKENIZED_PROMPT.by(None), TokenizedPrompt((prompt,), b"llama"))
        self.prefixes.produce(cycle, self.pool)
        return cycle

    def sends(self, row, **kwargs):
        """A request goes to an endpoint."""
        cycle = self.with_prompt(**kwargs)
        decision = decide(self.pool, row)
        self.prefixes.pre_request(cycle, decision)
        self.sessions.pre_request(cycle, decision)

    def matched(self, prompt=PROMPT):
        return self.with_prompt(prompt).get(PREFIX_MATCH.by(None)).match_blocks.tolist()

    def session(self, name, now_s=1002.0):
        return self.sessions.score(a_cycle(headers={"x-session-id": name}, now_s=now_s), self.pool).tolist()

    def goes_cold(self, row):
        cycle = a_cycle()
        cycle.state[self.cold.name] = True
        self.cold.pre_request(cycle, decide(self.pool, row))


@pytest.fixture
def workers():
    one, other = Worker(0), Worker(1)
    one.peers, other.peers = [other], [one]
    return one, other


async def taught_by(*teachers):
    newcomer = Worker(2)
    for teacher in teachers:
        await teacher.replicas.teach(lambda changes: newcomer.replicas.absorb(pickle.loads(pickle.dumps(changes)), 255))
    return newcomer


def test_a_prefix_sent_by_one_is_matched_by_all(workers):
    one, other = workers
    one.sends(1)
    assert other.matched() == [0, 0, 0]
    one.turn()
    assert other.matched() == one.matched() == [0, 40, 0]
    assert not one.due, "what was heard is not told again"
    assert not other.due


def test_a_prefix_of_an_endpoint_that_has_left_or_moved_is_not_taken(workers):
    one, other = workers
    other.pool = pool(signals(), version=2)
    one.sends(1)
    one.turn()
    assert other.matched() == [0]
    other.pool = pool(signals(), signals(), signals(), version=3)
    assert other.matched() == [0, 0, 0]


def test_a_restart_that_nobody_has_noticed_here_does_not_cost_what_came_after_it(workers):
    one, other = workers
    other.sends(1)
    other.turn()
    for worker in workers:
        worker.pool = pool(signals(restarts=0), signals(restarts=1), signals(restarts=0), version=2)
    one.sends(1, prompt=PROMPT[:5120])
    one.turn()
    assert other.matched() == [0, 20, 0]


def test_a_session_stays_with_its_server_whoever_serves_it(workers):
    one, other = workers
    one.sends(2, headers={"x-session-id": "s"})
    one.turn()
    assert other.session("s") == [0, 0, 1]


def test_two_that_bind_one_session_at_once_agree_in_the_end(workers):
    one, other = workers
    one.sends(0, headers={"x-session-id": "s"}, now_s=1001.0)
    other.sends(2, headers={"x-session-id": "s"}, now_s=1001.5)
    one.turn()
    other.turn()
    assert one.session("s") == other.session("s") == [0, 0, 1]


def test_cold_prompts_go_round_over_all_workers(workers):
    one, other = workers
    one.goes_cold(0)
    other.goes_cold(1)
    one.turn()
    other.turn()
    cycle = a_cycle()
    assert one.cold.score(cycle, POOL).tolist() == [0.5, 0, 1]


def outcome(row, *, cause=EndCause.NATURAL, status=200, at_s=1001.0):
    return Outcome(
        cause=cause,
        status=status,
        streamed=True,
        served_endpoint_id=f"ns/pod-{row}",
        received_s=1000.0,
        dispatched_s=1000.0,
        first_token_s=None,
        ended_s=at_s,
        usage=Usage(),
    )


def running(worker, row, target_ms):
    cycle = worker.with_prompt(headers={"x-slo-tpot-ms": str(target_ms)}, streaming=True)
    worker.latency.produce(cycle, worker.pool)
    worker.latency.pre_request(cycle, decide(worker.pool, row))
    return lambda: worker.latency.end(cycle, decide(worker.pool, row), outcome(row))


def lowest_ms(worker):
    return worker.latency.dump_state()["lowest_tpot_target_ms"]


def test_the_strictest_target_that_runs_anywhere_counts_until_it_ends_or_its_worker_dies(workers):
    one, other = workers
    end_strict = running(one, 1, 20)
    running(one, 1, 40)
    running(other, 1, 30)
    for worker in workers:
        worker.turn()
    assert lowest_ms(one) == lowest_ms(other) == {"ns/pod-1": 20}
    end_strict()
    one.turn()
    assert lowest_ms(one) == lowest_ms(other) == {"ns/pod-1": 30}
    other.replicas.forget_peer(0)
    one.replicas.forget_peer(1)
    assert (lowest_ms(one), lowest_ms(other)) == ({"ns/pod-1": 40}, {"ns/pod-1": 30})


async def test_failures_of_a_server_add_up_over_all_workers_and_newcomers_know_of_them(workers):
    one, other = workers
    for worker in (one, other, one):
        cycle = worker.with_prompt()
        worker.latency.produce(cycle, POOL)
        worker.latency.pre_request(cycle, decide(POOL, 1))
        worker.latency.end(cycle, decide(POOL, 1), outcome(1, cause=EndCause.UPSTREAM_ERROR, status=503))
        worker.turn()
    failing = {"ns/pod-1": {"answers": 0, "failures": 3}}
    newcomer = await taught_by(other)
    for worker in (*workers, newcomer):
        assert worker.latency.dump_state()["slow_start"] == failing


async def test_a_newcomer_is_taught_all_there_is(workers):
    one, _ = workers
    rng = np.random.default_rng(1)
    prompts = [rng.bytes(256 * 130) for _ in range(40)]
    for number, prompt in enumerate(prompts):
        one.sends(number % 3, prompt=prompt, headers={"x-session-id": f"s{number}"})
    one.goes_cold(2)
    newcomer = await taught_by(one)
    for number, prompt in enumerate(prompts):
        assert newcomer.matched(prompt) == one.matched(prompt)
        assert newcomer.session(f"s{number}") == one.session(f"s{number}")
    assert newcomer.prefixes.dump_state() == one.prefixes.dump_state()
    assert newcomer.cold.dump_state() == one.cold.dump_state()


async def test_requests_are_served_while_a_newcomer_is_taught(workers):
    one, _ = workers
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    one.prefixes.known = lambda: (("ns/pod-0", "10.0.0.1:8000", b"") for _ in range(160))
    await taught_by(one)
    counting.cancel()
    assert turns >= 8  # once for every 16 changes of 160, or so


def test_a_plugin_that_cannot_take_what_it_hears_costs_the_others_nothing(workers, caplog):
    one, other = workers
    one.broken.tell("x")
    one.broken.tell("y")
    one.sends(1)
    with caplog.at_level(logging.WARNING):
        one.turn()
    assert other.matched() == [0, 40, 0]
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "broken" in warning.getMessage()
