"""Our subset of Envoy's messages, held against two independent readings of the full set."""

import dataclasses
import importlib

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from envoy.type.v3 import http_status_pb2
from envoy_data_plane.envoy.service.ext_proc import v3 as dataplane
from google.protobuf.descriptor import FieldDescriptor

from epp.wire import ext_proc_pb2 as pb

PACKAGES = {
    "envoy.service.ext_proc.v3": external_processor_pb2,
    "envoy.extensions.filters.http.ext_proc.v3": processing_mode_pb2,
    "envoy.config.core.v3": base_pb2,
    "envoy.type.v3": http_status_pb2,
}
OURS = "headroom.wire."


def messages():
    found = list(pb.DESCRIPTOR.message_types_by_name.values())
    assert len(found) >= 20
    return found


def enums():
    nested = [enum for message in messages() for enum in message.enum_types]
    return [*pb.DESCRIPTOR.enum_types_by_name.values(), *nested]


def envoy_package(top_level_name):
    """The one package of Envoy's that has the name."""
    (package,) = [
        package
        for package, module in PACKAGES.items()
        if top_level_name in module.DESCRIPTOR.message_types_by_name
        or top_level_name in module.DESCRIPTOR.enum_types_by_name
    ]
    return package


def envoy_name(our_full_name):
    if not our_full_name.startswith(OURS):
        return our_full_name
    local = our_full_name.removeprefix(OURS)
    return f"{envoy_package(local.split('.')[0])}.{local}"


def envoy_message(descriptor):
    pool = external_processor_pb2.DESCRIPTOR.pool
    return pool.FindMessageTypeByName(envoy_name(descriptor.full_name))


def dataplane_class(descriptor):
    local = descriptor.full_name.removeprefix(OURS)
    module = importlib.import_module(f"envoy_data_plane.{envoy_package(local.split('.')[0])}")
    return getattr(module, local.replace(".", ""))


def populated(cls, oneof_choice=0):
    """A message of ours with every field set; of a oneof, the choice by number."""
    message = cls()
    for field in cls.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and field is not oneof.fields[oneof_choice % len(oneof.fields)]:
            continue
        if field.message_type is not None and field.message_type.full_name == "google.protobuf.Struct":
            getattr(message, field.name).update({"k": {"text": "é", "number": 1.5, "list": ["a", None, True]}})
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["namespace"].update({"k": ["a", "b"]})
        elif field.message_type is not None:
            child = populated(field.message_type._concrete_class, oneof_choice)
            if field.is_repeated:
                getattr(message, field.name).extend([child, child])
            else:
                getattr(message, field.name).CopyFrom(child)
        else:
            value = {
                FieldDescriptor.TYPE_BOOL: True,
                FieldDescriptor.TYPE_BYTES: b"\x00\xffbytes",
                FieldDescriptor.TYPE_STRING: "text é",
                FieldDescriptor.TYPE_UINT32: 429,
            }.get(field.type)
            if value is None:
                value = field.enum_type.values[-1].number
            if field.is_repeated:
                getattr(message, field.name).extend([value, value])
            else:
                setattr(message, field.name, value)
    return message


def roots():
    for cls in (pb.ProcessingRequest, pb.ProcessingResponse):
        (oneof,) = cls.DESCRIPTOR.oneofs
        for choice, field in enumerate(oneof.fields):
            yield pytest.param(populated(cls, choice), id=field.name)
    for choice in range(3):  # every kind of body mutation
        yield pytest.param(
            pb.ProcessingResponse(response_body=populated(pb.BodyResponse, choice)), id=f"body mutation {choice}"
        )


@pytest.mark.parametrize("ours", messages(), ids=lambda m: m.name)
def test_every_field_is_envoys_by_the_protobuf_modules(ours):
    theirs = envoy_message(ours)
    for field in ours.fields:
        other = theirs.fields_by_name[field.name]
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated), (
            field.name
        )
        oneof, other_oneof = field.containing_oneof, other.containing_oneof
        assert (oneof and oneof.name) == (other_oneof and other_oneof.name), field.name
        if field.message_type is not None:
            assert other.message_type.GetOptions().map_entry == field.message_type.GetOptions().map_entry
            if not field.message_type.GetOptions().map_entry:
                assert other.message_type.full_name == envoy_name(field.message_type.full_name), field.name
            else:
                for part in ("key", "value"):
                    mine, its = (m.fields_by_name[part] for m in (field.message_type, other.message_type))
                    assert (mine.number, mine.type) == (its.number, its.type)
                    assert mine.message_type is its.message_type  # both from google/protobuf
        if field.enum_type is not None:
            assert other.enum_type.full_name == envoy_name(field.enum_type.full_name), field.name


@pytest.mark.parametrize("ours", enums(), ids=lambda e: e.name)
def test_every_enum_value_is_envoys_by_the_protobuf_modules(ours):
    theirs = external_processor_pb2.DESCRIPTOR.pool.FindEnumTypeByName(envoy_name(ours.full_name))
    assert ours.values
    for value in ours.values:
        assert theirs.values_by_name[value.name].number == value.number


@pytest.mark.parametrize("ours", messages(), ids=lambda m: m.name)
def test_every_field_is_envoys_by_the_dataclasses(ours):
    theirs = {f.name: f for f in dataclasses.fields(dataplane_class(ours))}
    names = {
        FieldDescriptor.TYPE_BOOL: "bool",
        FieldDescriptor.TYPE_BYTES: "bytes",
        FieldDescriptor.TYPE_ENUM: "enum",
        FieldDescriptor.TYPE_MESSAGE: "message",
        FieldDescriptor.TYPE_STRING: "string",
        FieldDescriptor.TYPE_UINT32: "uint32",
    }
    for field in ours.fields:
        meta = theirs[field.name].metadata["betterproto"]
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        assert meta.number == field.number, field.name
        assert meta.proto_type == ("map" if is_map else names[field.type]), field.name
        assert meta.repeated == (field.is_repeated and not is_map), field.name
        assert meta.group == (field.containing_oneof.name if field.containing_oneof else None), field.name


@pytest.mark.parametrize("ours", enums(), ids=lambda e: e.name)
def test_every_enum_value_is_envoys_by_the_dataclasses(ours):
    theirs = {member.value for member in dataplane_class(ours)}
    assert {value.number for value in ours.values} <= theirs


def test_every_message_of_the_subset_is_reached_by_the_round_trips():
    reached = set()

    def walk(descriptor):
        if descriptor.full_name not in reached:
            reached.add(descriptor.full_name)
            for field in descriptor.fields:
                if field.message_type is not None:
                    walk(field.message_type)

    walk(pb.ProcessingRequest.DESCRIPTOR)
    walk(pb.ProcessingResponse.DESCRIPTOR)
    # Only a home for its enum, here as there.
    assert {m.full_name for m in messages()} - reached == {"headroom.wire.ProcessingMode"}


@pytest.mark.parametrize("message", list(roots()))
def test_populated_messages_survive_the_protobuf_modules(message):
    data = message.SerializeToString(deterministic=True)
    theirs = envoy_message(message.DESCRIPTOR)._concrete_class.FromString(data)
    theirs.DiscardUnknownFields()
    assert theirs.SerializeToString(deterministic=True) == data
    assert type(message).FromString(theirs.SerializeToString()) == message


@pytest.mark.parametrize("message", list(roots()))
def test_populated_messages_survive_the_dataclasses(message):
    cls = getattr(dataplane, message.DESCRIPTOR.name)
    assert type(message).FromString(bytes(cls.parse(message.SerializeToString()))) == message
