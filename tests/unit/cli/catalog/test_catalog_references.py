"""`holdfast catalog edit` refuses a dangling reference with one line and no change, unless it is forced."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.cli.catalogs import Place, make_place

NOBODY = '{"user": "99"}'


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place("stash in a file", tmp_path, request)
    assert made.run("init").exit_code == 0
    yield made
    made.close()


def found(place: Place, name: str) -> tuple[str, str]:
    """The id of an object of a type, and its value."""
    row = json.loads(place.dump())[name][0]
    return json.dumps(row["key"]["id"]), json.dumps(row["value"])


WRONG = [
    ("schemas", '{"id": {"user": "50"}}', f'{{"name": "s", "database_id": {NOBODY}}}', "in databases"),
    ("items", '{"id": {"user": "50"}}', f'{{"name": "i", "schema_id": {NOBODY}}}', "in schemas"),
    ("items", '{"id": {"user": "50"}}', '{"name": "i"}', "has no schema_id"),
    ("items", '{"id": {"user": "50"}}', '{"name": "i", "schema_id": {}}', "schema_id of items is empty"),
    ("cluster_replicas", '{"id": {"user": "50"}}', f'{{"name": "r", "cluster_id": {NOBODY}}}', "in clusters"),
    ("databases", '{"id": {"user": "50"}}', f'{{"name": "d", "owner_id": {NOBODY}}}', "in roles"),
    ("databases", "{}", '{"name": "d"}', "key of databases has no id"),
    ("databases", '{"id": {}}', '{"name": "d"}', "id of databases is empty"),
    ("comments", f'{{"item_id": {NOBODY}}}', '{"comment": "c"}', "in items"),
    (
        "databases",
        '{"id": {"user": "50"}}',
        f'{{"name": "d", "privileges": [{{"grantee": {NOBODY}, "grantor": {{"public": {{}}}}}}]}}',
        "grantee of databases is user 99, which is not in roles",
    ),
]


@pytest.mark.parametrize(("name", "key", "value", "says"), WRONG)
def test_what_refers_to_nothing_needs_force(place: Place, name: str, key: str, value: str, says: str) -> None:
    before = place.stored()
    refused = place.run("edit", name, key, value)
    assert (refused.exit_code, refused.stdout) == (2, "")
    line, hint = refused.stderr.splitlines()
    assert says in line
    assert "--force" in hint
    assert place.stored() == before
    forced = place.run("edit", name, key, value, "--force", "--yes")
    assert forced.exit_code == 0, forced.output


def test_what_refers_to_what_is_there_is_put_in(place: Place) -> None:
    database, _ = found(place, "databases")
    role, _ = found(place, "roles")
    schema = f'{{"name": "mine", "database_id": {database}, "owner_id": {role}}}'
    ambient = '{"name": "everywhere", "owner_id": {"public": {}}}'
    for number, value in ((50, schema), (51, ambient)):
        done = place.run("edit", "schemas", f'{{"id": {{"user": "{number}"}}}}', value, "--yes")
        assert done.exit_code == 0, done.output
    for name in ("databases", "schemas", "roles", "clusters", "cluster_replicas"):
        id_, value = found(place, name)
        done = place.run("edit", name, f'{{"id": {id_}}}', value, "--yes")
        assert "unchanged" in done.stdout, done.output
