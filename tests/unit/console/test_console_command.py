"""The command `holdfast console`: what it prints, refuses and does when it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from holdfast.cli import main

RUN = "from holdfast.cli.program import run; run()"


def test_the_address_works_until_ctrl_c(shop: Path) -> None:
    # The address that is printed has the first name, as no browser opens one that stands for all addresses.
    names = ("127.0.0.1", "Shop.Example", "2001:DB8:0::1")
    reach = ("--host", "0.0.0.0", *(f"--host-name={each}" for each in names))
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "console", str(shop), "--no-browser", *reach],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address), address
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=30) as page:
            assert "token" not in page.url
            assert "/locations/shop/collections/orders" in page.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(page.url, timeout=30)
        # It can be reached under the given name too, and under no other one.
        for name, status in (("shop.example", "401"), ("[2001:db8::1]", "401"), ("other.example", "421")):
            with pytest.raises(urllib.error.HTTPError, match=status):
                urllib.request.urlopen(urllib.request.Request(page.url, headers={"Host": name}), timeout=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        # Nothing that is logged or shown afterwards has the token.
        assert address.partition("token=")[2] not in said
    finally:
        process.kill()
        process.communicate()


HANGING = """
import os, threading
from holdfast.console.places import ShownPlace
look = ShownPlace._look
def hang(self, last):
    if os.path.exists(os.environ["HANG"]):
        os.mkdir(os.environ["HANG"] + "ing")
        threading.Event().wait(60)
    return look(self, last)
ShownPlace._look = hang
"""


def test_it_ends_while_a_store_does_not_respond(shop: Path, tmp_path: Path) -> None:
    hang, hanging = tmp_path / "hang", tmp_path / "hanging"
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING + RUN, "console", str(shop), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HANG": str(hang)},
    )
    try:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().strip())
        hang.touch()
        token = address.query.partition("=")[2]
        request = f"GET / HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
        with socket.create_connection((address.hostname, address.port)) as page:
            page.sendall(request.encode())
            until_s = time.monotonic() + 30
            while not hanging.exists():
                assert time.monotonic() < until_s
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert process.wait(15) == 0
    finally:
        process.kill()
        process.communicate()


def test_one_of_several_locations_that_is_missing_is_an_error_on_the_page(tmp_path: Path, shop: Path) -> None:
    missing = tmp_path / "missing"
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "console", str(shop), str(missing), "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=30) as page:
            text = page.read().decode()
        assert "/locations/shop/collections/orders" in text
        assert "Location missing can't be read" in text
        assert not missing.exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert f"can't open {missing}" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_shown_is_refused_at_once(tmp_path: Path, shop: Path) -> None:
    def refused(*words: str) -> str:
        done = CliRunner(env={"HOLDFAST_URL": "", "HOLDFAST_CONSENSUS_URL": ""}).invoke(
            main, ["console", *words, "--no-browser"]
        )
        assert done.exit_code in (2, 3), done.output
        assert done.stdout == ""
        return done.stderr

    assert "URL is missing" in refused()
    assert str(tmp_path / "none") in refused(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    # Several are refused if none of them can be shown, or if a URL is wrong.
    assert str(tmp_path / "none") in refused(str(tmp_path / "none"), str(tmp_path / "none-2"))
    assert "nothing" in refused(str(shop), "nothing://here")
    assert "--consensus belongs to one location" in refused(str(shop), str(shop), "--consensus", "memory://x")
    for wrong in ("http://shop.example", "shop.example:80", "cafe:80", "a..b", "a b", ""):
        assert "is neither a name nor an address" in refused(str(shop), "--host-name", wrong)
    assert "there is no location @nowhere" in refused("@nowhere")
    # No machine has this address.
    elsewhere = refused(str(shop), "--host", "192.0.2.1")
    assert "give --host an address of this machine" in elsewhere
    assert "attempting" not in elsewhere
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another --port" in refused(str(shop), "--port", str(taken.getsockname()[1]))
