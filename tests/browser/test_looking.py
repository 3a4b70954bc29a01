"""The checks of pages find what they look for. Otherwise a page that passes them proves nothing."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browser.looking import Look

pytestmark = pytest.mark.browser

SPOILS = {
    "light: color-contrast": "<p style='color: #bbb; background: #fff'>pale</p>",
    "light: label": "<input>",
    "dark: color-contrast": "<p style='color: #444; background: #000'>pale</p>",
    "desktop, too wide": "<div style='width: 2000px; height: 1px'></div>",
    "phone, too wide": "<div style='width: 500px; height: 1px'></div>",
    "phone, over its neighbour": "<dl class='tiles' style='width: 60px; overflow: hidden'>"
    "<div class='tile'><dd style='white-space: nowrap'>a long value in one line</dd></div></dl>",
}


@pytest.mark.parametrize("found", SPOILS)
def test_a_spoiled_page_is_found(look: "Look", found: str) -> None:
    page = look.open("/")
    page.evaluate(
        "(html) => document.querySelector('main').insertAdjacentHTML('beforeend', html)", SPOILS[found]
    )
    with pytest.raises(AssertionError, match=found):
        look.check("spoiled")


@pytest.mark.parametrize(
    ("does", "found"),
    [
        ("console.info('hello')", "info: hello"),
        (
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"1\">')",
            "Content Security Policy",
        ),
        ("setTimeout(() => { throw new Error('broken'); })", "uncaught: broken"),
        ("document.title = 'owned'", "owned"),
        ("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/'}))", "127.0.0.1:9"),
        ("fetch('http://example.com/').catch(() => {})", "example.com"),
    ],
)
def test_what_a_page_does_in_secret_is_found(look: "Look", does: str, found: str) -> None:
    page = look.open("/")
    page.evaluate(f"() => {{ {does} }}")
    page.wait_for_timeout(100)
    with pytest.raises(AssertionError, match=found):
        look.check_clean()
