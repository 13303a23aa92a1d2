"""The status page in a real browser: its content, hostile names, a lost driver, a phone, and use without a mouse."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving.browser import Browser, Page
from tests.observe import fakes
from wallaroo_spark.observe.causes import with_causes
from wallaroo_spark.observe.faces.page import static_routes
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.observe.server.driver_pages import Monitor
from wallaroo_spark.observe.server.messages import Route
from wallaroo_spark.observe.server.page_server import PageAddress, PageServer
from wallaroo_spark.registry.embedded import lasting_port

STATIC = Path(static_routes.__code__.co_filename).parent / "static"
TOKEN = "correct horse battery"
PHONE: dict[str, Any] = {"width": 360, "height": 740}
SHOWN = "document.querySelectorAll('#streams tbody tr').length > 0"


class Stage:
    """A page of a receiver that does not exist. Tests say which status comes next."""

    def __init__(self, place: PageAddress) -> None:
        self.status: ReceiverStatus = fakes.running(1_700_000_000.0)
        self._steps = itertools.count(1)
        self._monitor = Monitor(self._sample, "orders")
        routes = {**static_routes(), "/api/status": Route(self._monitor.answer)}
        self.server = PageServer(place, routes, "orders")

    def _sample(self) -> ReceiverStatus:
        # Time goes on, although nothing else does.
        return dataclasses.replace(self.status, time=self.status.time + next(self._steps) / 1000)

    def add(self, *statuses: ReceiverStatus) -> None:
        """Let the receiver have one status after the other."""
        for self.status in statuses:
            self._monitor.look()

    def __enter__(self) -> Stage:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._monitor.stop()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(PageAddress("127.0.0.1", 0, "")) as opened:
        yield opened


def history(steps: int = 40, **how: Any) -> list[ReceiverStatus]:
    return [fakes.running(1_700_000_000.0 + step, step=step, **how) for step in range(steps)]


def hostile(status: ReceiverStatus, name: str) -> ReceiverStatus:
    """The same receiver with a name of strangers in every place that takes one."""
    return with_causes(
        dataclasses.replace(
            status,
            slots=tuple(dataclasses.replace(slot, host=name, last_error=name) for slot in status.slots),
            instances=tuple(dataclasses.replace(one, name=name, program=name) for one in status.instances),
            streams=tuple(dataclasses.replace(one, name=name, instance=name) for one in status.streams),
            query=dataclasses.replace(status.query, error=name, checkpoint=name),
            driver_error=name,
        )
    )


def test_the_page_shows_the_way_of_the_rows_and_the_cause(browser: Browser, stage: Stage) -> None:
    stage.add(*history(trouble="sink"))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)

        assert page.text("h1") == "orders"
        assert page.text("#sentence") == stage.status.cause.sentence
        assert "has been in the query and its sink" in page.text("#sentence")
        assert page.text("#code") == f"More: wallaroo-spark explain {stage.status.cause.code}"
        titles = page.run("[...document.querySelectorAll('#flow h3')].map((title) => title.innerText)")
        assert titles == ["Connectors", "Workers", "Batch – here", "Commit", "ACK"]
        assert "2 of 2 serve" in page.text("#flow")
        assert "reading, query and sink" in page.text("#phases")
        assert len(page.run("[...document.querySelectorAll('#slots tbody tr')].map((row) => row.dataset.key)")) == 2
        assert "shop-0" in page.text("#slots")
        assert "postgres" in page.text("#sinks")
        curves = page.run(
            "[...document.querySelectorAll('svg.spark path:last-child')].map((p) => p.getAttribute('d').length)"
        )
        assert min(curves) > 100
        assert page.errors() == []


def test_names_of_strangers_are_text(browser: Browser, stage: Stage) -> None:
    names = ['<script>window.broken=1</script><img src=x onerror="window.broken=2">', "\"'`${window.broken=3}\u202e"]
    with browser.open(stage.server.address) as page:
        for name in names:
            stage.add(*(hostile(status, name) for status in history(3)))
            page.wait(f"document.body.innerText.includes({name!r})" if "\u202e" not in name else SHOWN)
            page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        assert page.run("window.broken === undefined")
        assert page.run("document.querySelectorAll('main script, main img').length") == 0
        assert page.errors() == []


def test_a_lost_driver_is_shown_as_such_and_comes_back(browser: Browser) -> None:
    port = lasting_port()
    with Stage(PageAddress("127.0.0.1", port, "")) as stage, browser.open(stage.server.address) as page:
        stage.add(*history(3))
        page.wait(SHOWN)
        assert page.run("document.getElementById('lost').hidden")
        stage.server.stop()
        page.wait("document.body.classList.contains('lost')")
        assert re.match(r"No answer from the driver since \d+ s; the figures are those of", page.text("#lost"))
        assert page.run("document.title") == "✗ orders: no answer"

        again = Stage(PageAddress("127.0.0.1", port, ""))
        with again:
            again.add(*history(3, trouble="lost"))
            page.wait("!document.body.classList.contains('lost')")
            page.wait("document.getElementById('sentence').innerText.includes('slot 0 has died')")
            assert "ExecutorLostFailure" in page.text("#events")
            assert "Workers – here" in page.text("#flow")
            assert page.run("document.querySelectorAll('#slots tr.bad').length") == 1
            assert "slot 0" in page.text("#events")


def test_figures_that_the_driver_cannot_renew_count_as_old(
    browser: Browser, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.add(*history(3))
    monkeypatch.setattr("wallaroo_spark.observe.server.driver_pages.PATIENCE_SECONDS", -1.0)
    stage._monitor._interval = -1.0
    with browser.open(stage.server.address) as page:
        page.wait("document.body.classList.contains('lost')")
        assert page.text("#lost").startswith("The driver has no newer figures than those of")


def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, stage: Stage) -> None:
    stage.add(*(hostile(status, "W" * 200) for status in history(5)))
    with browser.open(stage.server.address, **PHONE) as page:
        page.wait(SHOWN)
        assert page.run("document.documentElement.scrollWidth") <= PHONE["width"]
        too_wide = page.run(
            "[...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > 360.5 &&"
            " getComputedStyle(one).position !== 'absolute' && !one.closest('thead')).map((one) => one.outerHTML)"
        )
        assert too_wide == []


CONTRASTS = """(() => {
    const channel = (value) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([red, green, blue]) => 0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = numbers(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const poor = [];
    for (const element of document.querySelectorAll('body *')) {
        const direct = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!direct || !element.checkVisibility() || element.tagName === 'SCRIPT') continue;
        const [one, other] = [light(numbers(getComputedStyle(element).color)), light(ground(element))];
        const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (contrast < 4.5) poor.push(`${contrast.toFixed(2)} ${element.outerHTML.slice(0, 120)}`);
    }
    return poor;
})()"""


def test_every_text_has_contrast(browser: Browser, stage: Stage) -> None:
    stage.add(*history(3))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)
        for trouble in ("", "lost"):
            stage.add(*history(6, trouble=trouble)[3:])
            page.wait(f"document.querySelectorAll('#flow .bad').length === {1 if trouble else 0}")
            for dark in (False, True):
                page.screen(dark=dark)
                assert page.run(CONTRASTS) == []
                assert page.run(f"document.body.classList.add('lost'), {CONTRASTS}") == []
                page.run("document.body.classList.remove('lost'), 1")


def focused(page: Page) -> str:
    found: str = page.run(
        "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
    )
    return found


def test_the_page_is_reached_without_a_mouse(browser: Browser, stage: Stage) -> None:
    stage.add(*history(3))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)
        order = []
        for _ in range(6):
            page.press("Tab", 9)
            order.append(focused(page))
        assert order[:4] == ["skip", "pause", "search", "top"]

        page.run("document.querySelector('.skip').focus(), 1")
        page.press("Enter", 13)
        assert focused(page) == "main"
        page.run("document.getElementById('pause').focus(), 1")
        page.press("Enter", 13)
        page.wait("document.getElementById('fresh').innerText.startsWith('paused at')")
        assert page.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"


def test_assistive_technology_finds_regions_names_and_tables(browser: Browser, stage: Stage) -> None:
    stage.add(*history(5))
    with browser.open(stage.server.address, **PHONE) as page:
        page.wait(SHOWN)
        page.call("Accessibility.enable")
        nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
        named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node}
        for role, name in [
            ("table", "Slots"),
            ("table", "Streams"),
            ("status", "What the receiver waits for"),
            ("searchbox", "Find an instance or a stream"),
            ("combobox", "Rows"),
            ("button", "Pause"),
            ("region", "Slots"),
            ("columnheader", "ACK age"),
            ("heading", "orders"),
        ]:
            assert (role, name) in named, (role, name)
        assert any(role == "image" and name.startswith("Held rows: now ") for role, name in named)


def test_a_search_finds_a_stream_and_keeps_the_focus(browser: Browser, stage: Stage) -> None:
    stage.add(*history(3))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)
        page.run("document.getElementById('search').focus(), 1")
        page.type("ORDERS-1-2")
        page.wait("document.querySelectorAll('#streams tbody tr').length === 1")
        assert "orders-1-2.jsonl" in page.text("#streams")
        assert "1 stream found" in page.text("#streams-note")
        page.wait("document.getElementById('instances').hidden")
        assert focused(page) == "search"


def test_the_page_says_why_topics_are_not_shown(browser: Browser, stage: Stage) -> None:
    stage.add(dataclasses.replace(fakes.running(1_700_000_000.0), unread=("Topics are not shown: no right",)))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)
        assert page.text("#sinks-note") == "Topics are not shown: no right."
        assert "postgres" in page.text("#sinks")


def test_a_very_large_receiver_shows_the_worst_of_everything(browser: Browser, stage: Stage) -> None:
    big = fakes.running(1_700_000_000.0, step=10, slots=1_000, streams=5_000)
    stage.add(dataclasses.replace(big, totals=dataclasses.replace(big.totals, streams=100_000)))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)
        assert page.run("document.querySelectorAll('tbody tr').length") < 150
        assert "25 of 1,000 slots are shown" in page.text("#slots-note")
        assert "25 of 100K streams are shown" in page.text("#streams-note")


def test_a_page_with_a_token_asks_for_it_once(browser: Browser) -> None:
    with Stage(PageAddress("127.0.0.1", 0, TOKEN)) as stage:
        stage.add(*history(3))
        with browser.open(stage.server.address) as page:
            page.wait("!document.getElementById('login').hidden")
            assert focused(page) == "token"
            assert "orders" not in page.text("h1")
            page.type("wrong")
            page.press("Enter", 13)
            page.wait("document.getElementById('refused').innerText === 'This is not the token.'")
            page.run("document.getElementById('token').value = '', 1")
            page.type(TOKEN)
            page.press("Enter", 13)
            page.wait(SHOWN)
            assert page.run("document.getElementById('login').hidden")
            assert page.run("document.cookie") == ""
            page.call("Page.reload")
            page.wait(SHOWN)


def test_the_files_of_the_page_need_no_other_server() -> None:
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace('"http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//[a-z]+\.|@import|\binnerHTML\b|insertAdjacentHTML|document\.write", text), file
