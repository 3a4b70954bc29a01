"""The rules for every row of the registry of catalog objects."""

from importlib import import_module
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from holdfast._pb import objects_pb2
from holdfast.catalog.objects.registry import BY_NAME, OBJECT_TYPES, Kind, ObjectType
from holdfast.catalog.version import CATALOG_VERSION

# Written once and never changed: what is stored in every catalog.
TAGS = {
    "fence_token": "0001",
    "config": "0002",
    "settings": "0003",
    "id_allocators": "0004",
    "timestamps": "0005",
    "databases": "0006",
    "schemas": "0007",
    "roles": "0008",
    "clusters": "0009",
    "cluster_replicas": "000a",
    "cluster_introspection_source_indexes": "000b",
    "items": "000c",
    "comments": "000d",
    "default_privileges": "000e",
    "system_privileges": "000f",
    "system_configurations": "0010",
    "system_object_mappings": "0011",
    "audit_log": "0012",
    "storage_usage": "0013",
}

each_collection = pytest.mark.parametrize("collection", OBJECT_TYPES.values(), ids=str)


def all_descriptors(descriptor: Descriptor) -> list[Descriptor]:
    nested = [field.message_type for field in descriptor.fields if field.type == FieldDescriptor.TYPE_MESSAGE]
    return [descriptor, *(found for inner in nested for found in all_descriptors(inner))]


def test_every_kind_has_one_row_and_one_name() -> None:
    assert set(OBJECT_TYPES) == set(Kind)
    assert len(BY_NAME) == len(OBJECT_TYPES)
    messages = [m for row in OBJECT_TYPES.values() for m in (row.key, row.value)]
    assert len(set(messages)) == 2 * len(OBJECT_TYPES)


def test_tags_are_what_they_were() -> None:
    assert {name: row.kind.tag.hex() for name, row in BY_NAME.items()} == TAGS


@each_collection
def test_messages_have_one_encoding(collection: ObjectType[Any, Any]) -> None:
    for message in (collection.key, collection.value):
        for descriptor in all_descriptors(message.DESCRIPTOR):
            assert descriptor.file.name == "objects.proto"
            for field in descriptor.fields:
                assert field.type not in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE), (
                    field.full_name
                )
                is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
                assert not is_map, field.full_name


@each_collection
def test_fence_and_config_come_first_and_stay_readable(collection: ObjectType[Any, Any]) -> None:
    bootstrap = collection.kind in (Kind.FENCE_TOKEN, Kind.CONFIG)
    assert bootstrap == (collection.kind <= Kind.CONFIG)
    never_migrated = {Kind.FENCE_TOKEN, Kind.CONFIG, Kind.SETTING, Kind.AUDIT_LOG}
    assert collection.migratable == (collection.kind not in never_migrated)


@each_collection
def test_append_only_is_what_is_not_in_memory(collection: ObjectType[Any, Any]) -> None:
    assert collection.append_only == (not collection.cached)


def test_the_frozen_version_has_the_same_messages() -> None:
    frozen = import_module(f"holdfast._pb.objects_v{CATALOG_VERSION}_pb2").DESCRIPTOR
    current = objects_pb2.DESCRIPTOR
    assert set(current.message_types_by_name) == set(frozen.message_types_by_name)
    for name, message in current.message_types_by_name.items():
        old = frozen.message_types_by_name[name]
        assert [(f.name, f.number, f.type) for f in message.fields] == [
            (f.name, f.number, f.type) for f in old.fields
        ]
