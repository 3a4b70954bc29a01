"""Several instances may be the first ones: one of them creates the collection, and all feed it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import StorageController
from holdfast.errors import SourceStalled
from holdfast.ingest import StepOutcome, opened, parse
from holdfast.ingest.opened import ingestion_of
from unit.collections.stores import Stores
from unit.ingest.pipelines import SCHEMA, rows


@pytest.mark.parametrize("when", ["before the source is asked", "after it was asked"])
def test_another_instance_creates_the_collection_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "name": "x"}\n')
    spec = parse({"files": {"path": str(tmp_path)}, "format": {"json": {}}})
    client = Stores().open()
    real = opened.source_of
    calls = 0

    def source_of(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        source = real(*given, **named)
        if calls > 1:
            return source
        with ingestion_of(StorageController(client), "orders", spec, SCHEMA) as other:
            assert other.step().outcome is StepOutcome.COMMITTED
        if when == "before the source is asked":
            # As a consumer group that is ahead of what this one knows.
            def stalled(_: object) -> Any:
                raise SourceStalled("the group is ahead")

            source.probe = stalled
        return source

    monkeypatch.setattr(opened, "source_of", source_of)
    with ingestion_of(StorageController(client), "orders", spec, SCHEMA) as mine:
        assert mine.step().outcome is StepOutcome.IDLE
    assert sum(rows(client).values()) == 1


def test_a_source_that_is_stalled_creates_no_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse({"files": {"path": str(tmp_path)}, "format": {"json": {}}})
    client = Stores().open()
    controller = StorageController(client)
    real = opened.source_of

    def source_of(*given: Any, **named: Any) -> Any:
        source: Any = real(*given, **named)

        def stalled(_: object) -> Any:
            raise SourceStalled("the group is ahead")

        source.probe = stalled
        return source

    monkeypatch.setattr(opened, "source_of", source_of)
    with (
        pytest.raises(SourceStalled, match="the group is ahead"),
        ingestion_of(controller, "orders", spec, SCHEMA),
    ):
        pass
    assert [each.name for each in controller.list_collections()] == []
