"""Envoy's access log, read: what a record says, and that nothing in one can do harm."""

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy_messages import log_record, name_of, reply
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from epp.endings import EndCause
from epp.wire import access_log_pb2
from epp.wire.access_log import MAX_ID_CHARACTERS, Record, UnreadableError, read_records, watched_as

FLAGS = [field.name for field in accesslog_pb2.ResponseFlags.DESCRIPTOR.fields if field.message_type is None]


def envoys(name):
    return next(m for d in (als_pb2, accesslog_pb2) if (m := d.DESCRIPTOR.message_types_by_name.get(name)) is not None)


def test_every_field_of_the_subset_is_envoys():
    pairs = [(ours, envoys(ours.name)) for ours in access_log_pb2.DESCRIPTOR.message_types_by_name.values()]
    pairs += [
        (nested, theirs.nested_types_by_name[nested.name]) for ours, theirs in pairs for nested in ours.nested_types
    ]
    assert len(pairs) == 6
    for ours, theirs in pairs:
        for field in ours.fields:
            other = theirs.fields_by_name[field.name]
            assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
            if field.message_type is not None:
                assert field.message_type.name == other.message_type.name


def test_a_record_says_how_a_request_ended_and_what_it_took():
    data = log_record("a-1", last_byte_s=2.25, prompt_tokens=7, completion_tokens=20, cached_tokens=0)
    assert list(read_records(data)) == [Record("a-1", True, None, 2.25, 1234, 7, 20, 0)]


def test_a_record_of_a_request_that_runs_only_says_so():
    assert list(read_records(log_record("a-1", running=True, completion_tokens=3))) == [Record("a-1", False)]


@pytest.mark.parametrize("request_id", [None, "", "x" * (MAX_ID_CHARACTERS + 1)])
def test_what_has_no_name_of_ours_is_nobodys(request_id):
    assert [record.request_id for record in read_records(log_record(request_id))] == [None]


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_of_envoys_has_one_meaning(flag):
    (record,) = read_records(log_record("a-1", flags=[flag]))
    broken_off = {
        "upstream_connection_termination": EndCause.UPSTREAM_ERROR,
        "upstream_remote_reset": EndCause.UPSTREAM_ERROR,
        "upstream_protocol_error": EndCause.UPSTREAM_ERROR,
        "upstream_connection_failure": EndCause.UPSTREAM_ERROR,
        "upstream_request_timeout": EndCause.UPSTREAM_ERROR,
        "upstream_max_stream_duration_reached": EndCause.UPSTREAM_ERROR,
        "stream_idle_timeout": EndCause.UPSTREAM_ERROR,
        "local_reset": EndCause.UPSTREAM_ERROR,
        "downstream_connection_termination": EndCause.CLIENT_GONE,
        "downstream_remote_reset": EndCause.CLIENT_GONE,
        "downstream_protocol_error": EndCause.CLIENT_GONE,
        "duration_timeout": EndCause.CLIENT_GONE,
        "overload_manager": EndCause.CLIENT_GONE,
    }
    assert record.cut_by is broken_off.get(flag)


def test_a_server_that_broke_off_is_the_cause_although_its_client_was_reset_for_it():
    (record,) = read_records(log_record("a-1", flags=["downstream_remote_reset", "upstream_remote_reset"]))
    assert record.cut_by is EndCause.UPSTREAM_ERROR


@pytest.mark.parametrize("value", ["20", True, None, {"n": 1}, [1], -1, 1.5, 1e300, float("nan"), float("inf")])
def test_a_count_that_is_none_is_not_known(value):
    entry = accesslog_pb2.HTTPAccessLogEntry()
    ours = entry.common_properties.metadata.filter_metadata["headroom"].fields
    ours["request_id"].string_value = "a-1"
    if isinstance(value, float):
        ours["completion_tokens"].number_value = value
    else:
        json_format.ParseDict(value, ours["completion_tokens"])
    logs = als_pb2.StreamAccessLogsMessage.HTTPAccessLogEntries(log_entry=[entry])
    (record,) = read_records(als_pb2.StreamAccessLogsMessage(http_logs=logs).SerializeToString())
    assert (record.request_id, record.completion_tokens) == ("a-1", None)


def test_records_keep_their_order_and_others_logs_hold_none():
    both = als_pb2.StreamAccessLogsMessage.FromString(log_record("a-1"))
    both.http_logs.log_entry.extend(als_pb2.StreamAccessLogsMessage.FromString(log_record("a-2")).http_logs.log_entry)
    both.identifier.log_name = "headroom"
    assert [record.request_id for record in read_records(both.SerializeToString())] == ["a-1", "a-2"]
    tcp = als_pb2.StreamAccessLogsMessage(tcp_logs=als_pb2.StreamAccessLogsMessage.TCPAccessLogEntries())
    assert list(read_records(tcp.SerializeToString())) == []
    assert list(read_records(b"")) == []


@given(
    st.one_of(st.binary(max_size=300), st.builds(lambda a, b: a[:b], st.just(log_record("a-1")), st.integers(0, 400)))
)
def test_any_bytes_are_records_or_are_told_to_be_none(data):
    try:
        records = list(read_records(data))
    except UnreadableError:
        return
    assert all(isinstance(record, Record) for record in records)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=5))
def test_a_record_with_bytes_changed_says_something_or_nothing(changes):
    data = bytearray(log_record("a-1", completion_tokens=20, flags=["upstream_remote_reset"]))
    for at, value in changes:
        data[at % len(data)] = value
    try:
        records = list(read_records(bytes(data)))
    except UnreadableError:
        return
    for record in records:
        assert record.request_id is None or 0 < len(record.request_id) <= MAX_ID_CHARACTERS
        assert record.completion_tokens is None or record.completion_tokens >= 0


@given(st.text(min_size=1, max_size=MAX_ID_CHARACTERS).filter(lambda t: t.isascii()))
def test_a_name_is_added_to_a_reply_without_touching_what_is_there(name):
    answer = reply(b"").__class__()
    answer.request_headers.response.clear_route_cache = True
    answer.dynamic_metadata.update({"envoy.lb": {"x-gateway-destination-endpoint": "10.0.0.1:8000"}})
    named = reply(answer.SerializeToString() + watched_as(name))
    assert name_of(named) == name
    assert named.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "10.0.0.1:8000"
    assert named.request_headers.response.clear_route_cache
