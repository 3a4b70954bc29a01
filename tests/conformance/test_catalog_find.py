"""Finds one object by a unique value of its type, on every kind of catalog."""

import pytest

from conformance.catalogs import Catalogs, role, writable
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import OpenMode, ReadOnlyCatalog
from holdfast.catalog.objects.registry import DATABASES, ITEMS, ROLES, SCHEMAS, SETTINGS
from holdfast.errors import BadInput


def test_an_open_catalog_finds_by_name(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    catalog = writable(openable)
    item = catalog.ensure_item("holdfast", "public", "flights")
    with openable.open(OpenMode.READ_ONLY) as reader:
        for each in (catalog, reader):
            assert found_item(each, "flights") == item
            assert found_item(each, "ships") is None
            assert each.find(ROLES, pb.RoleValue(name="later")) is None
            with pytest.raises(BadInput, match="values of this type are not unique"):
                each.find(SETTINGS, pb.SettingValue())
        catalog.set_objects(ROLES, [role(7, "later")])
        assert catalog.find(ROLES, pb.RoleValue(name="later")) == role(7, "later")
        assert reader.find(ROLES, pb.RoleValue(name="later")) is None
        reader.sync()
        assert reader.find(ROLES, pb.RoleValue(name="later")) == role(7, "later")


def found_item(catalog: ReadOnlyCatalog, name: str) -> str | None:
    database = catalog.find(DATABASES, pb.DatabaseValue(name="holdfast"))
    assert database is not None
    schema = catalog.find(SCHEMAS, pb.SchemaValue(database_id=database.key.id, name="public"))
    assert schema is not None
    item = catalog.find(ITEMS, pb.ItemValue(schema_id=schema.key.id, name=name))
    return None if item is None else f"u{item.key.id.user}"
