"""The console on a location in S3 and Postgres. No page shows a secret of it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest

from browser import shop
from browser.conftest import RunningConsole, console_of
from testbed.minio import Minio

if TYPE_CHECKING:
    from browser.looking import Look

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.postgres, pytest.mark.s3]


def test_no_page_shows_a_secret(
    looks: "Callable[[RunningConsole], Look]", minio: Minio, bucket: str, postgres_url: str, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    url = f"s3://{bucket}/shop?endpoint={minio.endpoint}"
    shop.build(url, postgres_url, folder=tmp_path / "clicks")
    secrets = [minio.credentials["AWS_SECRET_ACCESS_KEY"], urlsplit(postgres_url).password or ""]
    assert all(secrets)
    with console_of(tmp_path, url, "--consensus", postgres_url) as running:
        look = looks(running)
        for path in (
            "/",
            "/activity",
            "/locations/shop/shards",
            "/locations/shop/catalog",
            "/locations/shop/collections/clicks",
            "/locations/shop/collections/orders/rows",
            f"/locations/shop/collections/{quote(shop.ODD, safe='')}/rows",
        ):
            page = look.open(path)
            expect(page.get_by_role("main")).to_be_visible()
            text = page.content()
            assert [each for each in (*secrets, *map(quote, secrets)) if each in text] == [], path
        look.check_clean()
