"""What `holdfast catalog edit`, `delete`, `load` and `fence` change, for every type and place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, Object, OpenMode
from holdfast.catalog.objects.message_json import message_to_json
from holdfast.catalog.objects.registry import BY_NAME, FENCE_TOKENS, OBJECT_TYPES, SETTINGS, ObjectType
from holdfast.errors import Fenced, FenceRegressed
from unit.cli.catalogs import KINDS, S3_AND_POSTGRES, Place, make_place

CHANGEABLE = [collection for collection in OBJECT_TYPES.values() if collection is not FENCE_TOKENS]
EMBEDDED = ("persist in memory", "stash in a file")


@pytest.fixture
def embedded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An initialized catalog of the kind that the test names, where it needs no server."""
    made = make_place(request.param, tmp_path, request)
    assert made.run("init").exit_code == 0
    yield made
    made.close()


def sample(message_type: type[Message], seed: int) -> Message:
    """A message with all fields set, another one for every seed."""
    message = message_type()
    chosen = {
        oneof.name: oneof.fields[seed % len(oneof.fields)].name for oneof in message_type.DESCRIPTOR.oneofs
    }
    for number, field in enumerate(message_type.DESCRIPTOR.fields, start=1):
        oneof = field.containing_oneof
        if oneof is not None and chosen[oneof.name] != field.name:
            continue
        fill(message, field, 100 * seed + number)
    return message


def fill(message: Message, field: FieldDescriptor, seed: int) -> None:
    value: Any
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            if field.is_repeated:
                target = getattr(message, field.name)
                for each in (seed, seed + 1):
                    added = target.add()
                    added.CopyFrom(sample(type(added), each))
            else:
                own = getattr(message, field.name)
                own.SetInParent()
                own.CopyFrom(sample(type(own), seed))
            return
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            numbers = sorted(field.enum_type.values_by_number)
            value = numbers[1 + seed % (len(numbers) - 1)]
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_STRING:
            value = f'{field.name} ❄ "{seed}"'
        case FieldDescriptor.CPPTYPE_STRING:
            value = bytes([seed % 256, 0, 255])
        case FieldDescriptor.CPPTYPE_BOOL:
            value = True
        case FieldDescriptor.CPPTYPE_UINT64:
            value = (1 << 63) + seed
        case _:
            value = seed
    if field.is_repeated:
        getattr(message, field.name).extend([value])
    else:
        setattr(message, field.name, value)


def text(message: Message) -> str:
    return json.dumps(message_to_json(message))


def objects(place: Place) -> dict[str, dict[str, Any]]:
    """What is there by type and key, but for the fence token."""
    dumped = json.loads(place.dump())
    del dumped["fence_token"]
    return {
        name: {json.dumps(found["key"]): found["value"] for found in rows} for name, rows in dumped.items()
    }


def done(result: Result, *, fenced: bool = True) -> str:
    """What a command that succeeded says; before it changes anything it says whom it fences."""
    assert result.exit_code == 0, result.output
    said = result.stderr.splitlines()
    assert len(said) == fenced
    assert all(line.startswith("fencing every process that writes to catalog ") for line in said)
    (line,) = result.stdout.splitlines()
    return line


def opened(place: Place) -> Catalog:
    return place.openable().open(OpenMode.WRITABLE, holder="db", purpose="a database that runs")


def edit_and_delete(place: Place, collection: ObjectType[Any, Any]) -> None:
    def contents() -> dict[str, dict[str, Any]]:
        found = objects(place)
        if collection.append_only:
            # The allocator moves beyond what is put there.
            del found["id_allocators"]
        return found

    name = collection.name
    key, first, second = sample(collection.key, 1), sample(collection.value, 2), sample(collection.value, 3)
    before = contents()
    shown = json.dumps(message_to_json(key))
    assert ": inserted" in done(place.run("edit", name, text(key), text(first), "--force"))
    assert contents() == {**before, name: {**before[name], shown: message_to_json(first)}}
    said = done(place.run("edit", name, text(key), "-", "--force", text=text(second)))
    assert said.endswith(f"replaced, before: {json.dumps(message_to_json(first), ensure_ascii=False)}")
    assert contents() == {**before, name: {**before[name], shown: message_to_json(second)}}
    assert "unchanged" in done(place.run("edit", name, text(key), text(second), "--force"), fenced=False)
    said = done(place.run("delete", name, text(key), "--force"))
    assert said.endswith(f"deleted, before: {json.dumps(message_to_json(second), ensure_ascii=False)}")
    assert contents() == before


@pytest.mark.parametrize(
    "embedded",
    [pytest.param(EMBEDDED[0], marks=pytest.mark.long), EMBEDDED[1]],
    indirect=True,
)
def test_every_type_is_edited_and_deleted_and_a_dump_shows_exactly_that(embedded: Place) -> None:
    for collection in CHANGEABLE:
        edit_and_delete(embedded, collection)


def test_an_object_is_edited_wherever_the_catalog_is(place: Place) -> None:
    assert place.run("init").exit_code == 0
    running = opened(place)
    edit_and_delete(place, BY_NAME["audit_log"])
    with pytest.raises(Fenced):
        running.confirm_leadership()


@pytest.mark.parametrize("embedded", EMBEDDED, indirect=True)
def test_what_a_dump_shows_is_taken_as_it_stands_there(embedded: Place, tmp_path: Path) -> None:
    before = objects(embedded)
    for name, rows in before.items():
        for key, value in rows.items():
            if name == "config":
                assert embedded.run("edit", name, key, json.dumps(value)).exit_code == 2
                said = embedded.run("edit", name, key, json.dumps(value), "--force")
            else:
                (tmp_path / "value.json").write_text(f"\ufeff{json.dumps(value, indent=2)}\n")
                said = embedded.run("edit", name, key, f"@{tmp_path}/value.json")
            assert "unchanged" in done(said, fenced=False)
    assert objects(embedded) == before


@pytest.mark.parametrize("to", [kind for kind in KINDS if kind != S3_AND_POSTGRES])
@pytest.mark.parametrize("embedded", EMBEDDED, indirect=True)
def test_a_dump_makes_the_same_catalog_elsewhere(
    embedded: Place, to: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with opened(embedded) as catalog:
        for collection in CHANGEABLE:
            catalog.dangerous_edit(collection, sample(collection.key, 1), sample(collection.value, 2))
    (tmp_path / "other").mkdir()
    other = make_place(to, tmp_path / "other", request)
    try:
        dumped = embedded.dump()
        (tmp_path / "dump.json").write_text(dumped)
        said = done(other.run("load", str(tmp_path / "dump.json")), fenced=False)
        assert said.startswith(f"loaded {tmp_path}/dump.json into catalog ")
        assert objects(other) == objects(embedded)
        token = json.loads(other.dump())["fence_token"][0]["value"]
        assert (token["epoch"], token["purpose"]) == ("1", "holdfast catalog load")
        assert "upgrade" not in said
        assert other.run("upgrade-check").exit_code == 0
        with opened(other) as catalog:
            assert catalog.object_counts()["databases"] == len(objects(embedded)["databases"])
    finally:
        other.close()


def test_a_load_replaces_what_is_there_but_takes_nothing_back(place: Place) -> None:
    assert place.run("init").exit_code == 0
    before, dumped = objects(place), place.dump()
    running = opened(place)
    running.set_objects(SETTINGS, [Object(pb.SettingKey(name="new"), pb.SettingValue(value="1"))])
    running.ensure_item("holdfast", "public", "flights")
    changed = objects(place)
    refused = place.run("load", "-", text=dumped)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "needs confirmation" in refused.stderr.splitlines()[0]
    running.confirm_leadership()
    said = place.run("load", "-", "--yes", text=dumped)
    assert said.exit_code == 0, said.output
    assert " contents are replaced: " in said.stderr
    kept = {"audit_log", "id_allocators", "timestamps"}
    assert changed["audit_log"] != before["audit_log"]
    assert objects(place) == {name: (changed if name in kept else before)[name] for name in before}
    with pytest.raises(Fenced):
        running.confirm_leadership()


def test_the_fence_is_raised_after_a_restore_and_never_lowered(tmp_path: Path) -> None:
    at = tmp_path / "stash.sqlite"
    restored = ("--stash", f"sqlite://{at}")
    place = make_place("stash in a file", tmp_path, None)  # type: ignore[arg-type]
    assert place.options == restored
    assert place.run("init", "--deploy-generation", "2").exit_code == 0
    with_sidecars = sorted(tmp_path.glob("stash.sqlite*"))
    copies = {path: path.read_bytes() for path in with_sidecars}
    running = place.openable().open(OpenMode.WRITABLE, deploy_generation=2, holder="db", purpose="runs")
    running.close()
    last = running.fence_token().epoch
    for path in tmp_path.glob("stash.sqlite*"):
        path.unlink()
    for path, data in copies.items():
        path.write_bytes(data)
    with pytest.raises(FenceRegressed) as regressed:
        running.confirm_leadership()
    assert f"--at-least {last}" in regressed.value.hint
    assert done(place.run("fence", "--at-least", str(last))) == (
        f"raised: epoch {last - 1} of generation 2 -> epoch {last} of generation 2"
    )
    again = place.openable().open(OpenMode.WRITABLE, deploy_generation=2, holder="db", purpose="runs again")
    assert again.fence_token().epoch == last + 1
    before = place.stored()
    told = done(place.run("fence", "--at-least", "1"), fenced=False)
    assert told.startswith("unchanged: ")
    assert f"nobody was fenced (use --above {last + 1} to fence)" in told
    assert place.stored() == before
    # Whoever has it is shut out, also by somebody who knows an old epoch only.
    for above, epoch in ((1, last + 2), (last + 9, last + 10)):
        told = done(place.run("fence", "--above", str(above)))
        assert told.endswith(f"-> epoch {epoch} of generation 2")
    with pytest.raises(Fenced):
        again.confirm_leadership()
