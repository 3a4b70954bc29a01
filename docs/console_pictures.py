"""Draws the pictures of the console in the documentation: `make pictures`.

It builds a location as the browser tests do, opens a real console on it in Chromium, and writes
`images/console-*.png`. Times and ages differ from run to run, so nothing compares the files.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from browser import shop
from browser.conftest import console_of
from testbed.chromium import Chromium

IMAGES: Final = Path(__file__).parent / "images"
_WINDOW: Final = {"width": 1280, "height": 900}


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory(prefix="holdfast-pictures-") as name:
        folder = Path(name)
        shop.build(f"file://{folder}/shop", folder=folder / "clicks", odd=False)
        config = folder / "config.toml"
        config.write_text(f'[locations.shop]\nurl = "{folder}/shop"\n')
        os.environ["HOLDFAST_CONFIG"] = str(config)
        chromium = Chromium.start()
        try:
            with console_of(folder, "@shop") as console:
                page = chromium.browser.new_page(viewport=_WINDOW, color_scheme="light")
                page.goto(console.address)
                collection = f"{console.origin}/locations/shop/collections/orders"
                page.set_viewport_size({**_WINDOW, "height": 640})
                page.screenshot(path=IMAGES / "console-overview.png")
                page.set_viewport_size(_WINDOW)
                page.goto(collection)
                page.screenshot(path=IMAGES / "console-collection.png")
                page.goto(f"{collection}/rows")
                page.get_by_role("link", name="Compare with the change before").click()
                page.locator(".count-added").wait_for()
                page.screenshot(path=IMAGES / "console-rows.png")
        finally:
            chromium.stop()


if __name__ == "__main__":
    main()
