"""Sessions stay with their server, and a client can steer nothing but its own request among its own candidates."""

import base64

import numpy as np
import pytest
from plugin_fakes import NOW_S, a_cycle, decide, make, pool
from pydantic import ValidationError

from epp.plugins import session_affinity_scorer as module

BY_ID = {"strategy": "session_id"}


def token(text):
    return base64.b64encode(text.encode()).decode()


def score(plugin, candidates, **headers):
    cycle = a_cycle(headers={name.replace("_", "-"): value for name, value in headers.items()})
    return plugin.score(cycle, candidates).tolist()


def test_a_token_from_the_response_leads_back_to_its_server():
    plugin, candidates, cycle = make("session-affinity-scorer"), pool(size=3), a_cycle()
    plugin.response_headers(cycle, decide(candidates, 1), 200, {}, None)
    assert cycle.response_headers == {"x-session-token": token("ns/pod-1")}
    assert score(plugin, candidates, x_session_token=cycle.response_headers["x-session-token"]) == [0, 1, 0]


def test_the_token_names_the_server_that_really_answered():
    plugin, candidates, cycle = make("session-affinity-scorer"), pool(size=3), a_cycle()
    plugin.response_headers(cycle, decide(candidates, 1), 200, {}, "10.0.0.3:8000")
    assert cycle.response_headers == {"x-session-token": token("ns/pod-2")}


@pytest.mark.parametrize(
    "garbage",
    ["", " ", "%%%", "bnMvcG9kLTE", "\u00e9", base64.b64encode(b"\xff\xfe").decode(), token("evil.example:80"),
     token("ns/pod-9"), token("10.0.0.2:8000"), "A" * 100_000],
)  # fmt: skip
def test_a_token_that_names_no_candidate_changes_nothing(garbage):
    assert score(make("session-affinity-scorer"), pool(size=2), x_session_token=garbage) == [0, 0]


def test_a_token_for_a_server_that_was_filtered_out_changes_nothing():
    left = pool(size=3).where(np.array([True, False, True]))
    assert score(make("session-affinity-scorer"), left, x_session_token=token("ns/pod-1")) == [0, 0]
    assert score(make("session-affinity-scorer"), left, x_session_token=token("ns/pod-2")) == [0, 1]


def test_the_token_header_can_be_named():
    plugin = make("session-affinity-scorer", {"encodedEndpointHeaderConfig": {"header": "X-Sticky"}})
    assert score(plugin, pool(size=2), x_sticky=token("ns/pod-1")) == [0, 1]


def bind(plugin, candidates, row, now_s=NOW_S, session="abc"):
    plugin.pre_request(a_cycle(now_s=now_s, headers={"x-session-id": session}), decide(candidates, row))


def test_a_session_id_is_bound_where_it_went_and_not_moved_by_a_detour():
    plugin, candidates = make("session-affinity-scorer", BY_ID), pool(size=3)
    assert score(plugin, candidates, x_session_id="abc") == [0, 0, 0]
    bind(plugin, candidates, 2)
    bind(plugin, candidates, 0)
    assert score(plugin, candidates, x_session_id="abc") == [0, 0, 1]
    assert score(plugin, candidates, x_session_id="other") == [0, 0, 0]
    assert score(plugin, candidates) == [0, 0, 0]


def test_a_session_is_bound_anew_when_its_server_is_no_candidate():
    plugin, candidates = make("session-affinity-scorer", BY_ID), pool(size=3)
    bind(plugin, candidates, 2)
    bind(plugin, candidates.where(np.array([True, True, False])), 1)
    assert score(plugin, candidates, x_session_id="abc") == [0, 1, 0]


def test_a_session_id_strategy_adds_no_response_header():
    plugin, cycle = make("session-affinity-scorer", BY_ID), a_cycle()
    plugin.response_headers(cycle, decide(pool(size=1), 0), 200, {}, None)
    assert cycle.response_headers == {}


def test_an_unused_session_is_forgotten():
    plugin, candidates = make("session-affinity-scorer", BY_ID), pool(size=2)
    bind(plugin, candidates, 1)
    later = a_cycle(now_s=NOW_S + 301, headers={"x-session-id": "abc"})
    assert plugin.score(later, candidates).tolist() == [0, 0]
    bind(plugin, candidates, 0, now_s=NOW_S + 301, session="new")
    assert plugin.dump_state() == {"sessions": 1}


def test_clients_cannot_make_sessions_without_end(monkeypatch):
    monkeypatch.setattr(module, "MAX_SESSIONS", 10)
    plugin, candidates = make("session-affinity-scorer", BY_ID), pool(size=2)
    for i in range(50):
        bind(plugin, candidates, 1, session=f"session-{i}" * 1000)
    assert plugin.dump_state() == {"sessions": 10}
    assert all(len(key) == 16 for key in plugin._sessions._entries)


def test_the_first_source_that_is_present_counts():
    sources = {"sources": [{"header": "X-A"}, {"header": "x-b"}]}
    plugin, candidates = make("session-affinity-scorer", BY_ID | {"sessionIdConfig": sources}), pool(size=2)
    plugin.pre_request(a_cycle(headers={"x-b": "s"}), decide(candidates, 1))
    assert score(plugin, candidates, x_b="s") == [0, 1]
    assert score(plugin, candidates, x_a="s", x_b="t") == [0, 1]


def test_the_binding_can_follow_another_profile():
    plugin, candidates = make("session-affinity-scorer", BY_ID | {"profileName": "prefill"}), pool(size=3)
    plugin.pre_request(a_cycle(headers={"x-session-id": "abc"}), decide(candidates, 0, prefill_row=2))
    assert score(plugin, candidates, x_session_id="abc") == [0, 0, 1]


@pytest.mark.parametrize(
    "bad",
    [
        {"strategy": "sticky"},
        {"sessionIdConfig": {"sources": []}},
        {"sessionIdConfig": {"sources": [{"attribute": "SessionID"}]}},
        {"sessionIdConfig": {"evictionTtlSeconds": 0}},
        {"encodedEndpointHeaderConfig": {"header": ""}},
    ],
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValidationError):
        make("session-affinity-scorer", bad)
