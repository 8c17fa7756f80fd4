"""The page of the server, in a browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from diskcache_like import Cache
from diskcache_like.server.access import Access
from diskcache_like.server.guard import LOOPBACK
from diskcache_like.server.http import application

from ..support.browsers import MissingBrowser, Page, browser, browser_program
from ..support.http_server import serving

HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with closing(Cache(tmp_path / "cache", pickle="never", metrics_level="full")) as made:
        yield made


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    try:
        browser_program()
    except MissingBrowser as reason:
        pytest.skip(str(reason))
    with browser(tmp_path / "profile") as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskcache_like.server.http.INTERVAL", 0.05)


@pytest.fixture
def address(cache: Cache, access: Access) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(application(cache, access, LOOPBACK), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def used(cache: Cache, prefix: str) -> None:
    for number in range(40):
        cache[f"{prefix}:{number}"] = "x"
        assert cache.get(f"{prefix}:{number}") == "x"
        assert cache.get(f"{prefix}:nothing {number}") is None


@pytest.mark.parametrize("access", [Access()])
def test_what_the_cache_does_is_shown_while_it_does_it(cache: Cache, page: Page, address: str) -> None:
    page.do("Page.navigate", url=address)
    page.awaited("document.querySelector('#entries')?.textContent === '0'")
    page.awaited("document.querySelector('#hits .number').textContent === '0'")
    used(cache, "users")
    page.awaited("document.querySelector('#entries').textContent === '40'")
    page.awaited(
        "[...document.querySelectorAll('#spaces tr')].some((row) => row.innerText.startsWith('users\t40\t50.0 %\t40'))"
    )
    page.awaited("document.querySelector('#hits .peak').textContent !== 'peak 1'")
    assert page.value("document.querySelector('#hits path.area').getAttribute('d')").startswith("M")
    assert page.value("document.querySelector('#hits svg').getAttribute('aria-label')").startswith("Hits/s of the last")
    page.awaited("[...document.querySelectorAll('#times th')].some((cell) => cell.textContent === 'set')")
    assert page.value("document.querySelector('#status').textContent") == "live"
    used(cache, "users")
    page.awaited("document.querySelector('#spaces tr').innerText.startsWith('users\t80\t50.0 %\t80')")


@pytest.mark.parametrize("access", [Access()])
def test_a_name_is_text_whatever_is_in_it(cache: Cache, page: Page, address: str) -> None:
    page.do("Page.navigate", url=address)
    page.awaited("document.querySelector('#status')?.textContent === 'live'")
    used(cache, HOSTILE)
    used(cache, "__proto__")
    assert (
        page.awaited("[...document.querySelectorAll('#spaces th')].map((cell) => cell.textContent).sort()[1]")
        == "__proto__"
    )
    assert page.value("[...document.querySelectorAll('#spaces th')].map((cell) => cell.textContent)[0]") in (
        HOSTILE,
        "__proto__",
    )
    assert page.value("document.querySelectorAll('img').length") == 0
    assert page.value("document.title") == "Cache"


@pytest.mark.parametrize("access", [Access()])
def test_nothing_but_the_script_of_the_page_runs_there(page: Page, address: str) -> None:
    page.do("Page.navigate", url=address)
    page.awaited("document.querySelector('#status')?.textContent === 'live'")
    page.value("document.body.insertAdjacentHTML('beforeend', \"<img src=x onerror=document.title='taken'>\"); 0")
    page.value("document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 1'})); 0")
    assert page.value("new Promise((done) => setTimeout(() => done(document.title), 100))") == "Cache"


@pytest.mark.parametrize("access", [Access("pässword".encode())])
def test_the_page_asks_for_the_password(cache: Cache, page: Page, address: str) -> None:
    def give(password: str) -> None:
        page.value(f"document.querySelector('#password').value = '{password}'")
        page.value("document.querySelector('button').click()")

    page.do("Page.navigate", url=address)
    page.awaited("document.querySelector('#ask')?.checkVisibility()")
    assert not page.value("document.querySelector('#shown').checkVisibility()")
    assert page.value("document.querySelector('#wrong').textContent") == ""
    give("wrong")
    page.awaited("document.querySelector('#wrong').textContent === 'This is not the password.'")
    give("pässword")
    cache["key"] = 1
    page.awaited("document.querySelector('#entries').textContent === '1'")
    assert not page.value("document.querySelector('#ask').checkVisibility()")
    assert page.value("document.querySelector('#shown').checkVisibility()")
    page.do("Page.reload")
    page.awaited("document.querySelector('#entries')?.textContent === '1'")
