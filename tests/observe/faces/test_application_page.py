"""The page of an application in a real browser: its graph, an empty application, trouble, and names of strangers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from proving.browser import Browser
from tests.observe import application_fakes as fakes
from wallaroo_spark.observe.application import ApplicationStatus, PipelineStatus, StageStatus
from wallaroo_spark.observe.faces.page import APPLICATION, application_document, static_routes
from wallaroo_spark.observe.record import ApplicationRecord
from wallaroo_spark.observe.server.driver_pages import PageMonitor
from wallaroo_spark.observe.server.messages import Route
from wallaroo_spark.observe.server.page_server import PageAddress, PageServer

NOW = 1_700_000_000.0
SHOWN = "document.querySelectorAll('#streams tbody tr').length > 0"


class Stage:
    """The page of an application that does not exist. Tests say which status comes next."""

    def __init__(self) -> None:
        self.status = fakes.empty(NOW)
        self.monitor = PageMonitor(lambda: self.status, "application shop", ApplicationRecord(), application_document)
        routes = {**static_routes(APPLICATION), "/api/status": Route(self.monitor.answer)}
        self.server = PageServer(PageAddress("127.0.0.1", 0, ""), routes, "shop")

    def add(self, *statuses: ApplicationStatus) -> None:
        """Let the application have one status after the other."""
        for self.status in statuses:
            self.monitor.look()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    made.server.start()
    yield made
    made.server.stop()
    made.monitor.stop()


def history(steps: int = 30, *, trouble: bool = False) -> list[ApplicationStatus]:
    return [fakes.busy(NOW + step, step=step, trouble=trouble) for step in range(steps)]


def test_an_empty_application_is_shown(browser: Browser, stage: Stage) -> None:
    stage.add(fakes.empty(NOW))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)

        assert page.text("h1") == "shop"
        assert page.text("#sentence") == "shop: everything that has come is done"
        assert "The schema declares no pipeline." in page.text("#pipelines-note")
        assert "1 of 1 serve" in page.text("#flow")
        assert "No batch has ended yet." in page.text("#batch-note")
        assert page.errors() == []


def test_a_busy_application_has_a_graph_of_each_pipeline_with_counts(browser: Browser, stage: Stage) -> None:
    stage.add(*history())
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)

        boxes = page.run("[...document.querySelectorAll('.graph g text.title')].map((text) => text.textContent)")
        assert boxes == [
            "shop/orders", "charge", "reserve", "score-the-risk-of-t…", "ship", "tidy", "shop/shipments", "send",
        ]  # fmt: skip
        assert "4 wait, 60 run" in page.text("#graphs")
        across = page.run("[...document.querySelectorAll('.graph')][0].querySelectorAll('.edge').length")
        assert across == 7
        assert "late" in page.text("#groups")
        assert "39,995" in page.text("#groups tbody tr")
        assert "182 active" in page.text("#flow")
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.errors() == []


def test_trouble_is_marked_where_it_is(browser: Browser, stage: Stage) -> None:
    stage.add(*history(3), *history(6, trouble=True)[3:])
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)

        assert "1 of 3 gateways do not serve (g1); its last error: ExecutorLostFailure" in page.text("#sentence")
        assert page.text("#code") == "More: wallaroo-spark explain gateway-not-served"
        assert page.run("document.querySelector('#flow li').className") == "bad"
        assert page.run("document.querySelectorAll('.graph .bad').length") == 1
        assert "no member for" in page.text("#stages tr.bad")
        assert page.text("#gateways tr.bad td").startswith("g1")
        assert "it is started again: ExecutorLostFailure" in page.text("#events")


def test_many_pipelines_are_found_by_name_and_idle_ones_are_folded(browser: Browser, stage: Stage) -> None:
    status = fakes.busy(NOW)
    idle = tuple(
        PipelineStatus(f"shop/idle-{number}", "shop/orders", stages=(StageStatus("wait"),)) for number in range(12)
    )
    stage.add(dataclasses.replace(status, pipelines=(*status.pipelines, *idle)))
    with browser.open(stage.server.address) as page:
        page.wait(SHOWN)

        assert page.text("#idle-note") == "12 idle pipelines"
        assert page.run("document.querySelectorAll('#graphs .graph').length") == 2
        assert "shop/idle-3" not in page.text("#stages")
        page.run("byId('idle').open = true")
        page.wait("byId('stages').innerText.includes('shop/idle-3')")
        page.run("byId('search').value = 'IDLE-3'; byId('search').dispatchEvent(new Event('input'))")
        page.wait("byId('pipelines-note').innerText.includes('1 of 14 pipelines')")
        assert page.run("[...document.querySelectorAll('.graph figcaption')].map((one) => one.textContent)") == [
            "shop/idle-3"
        ]
        assert page.errors() == []


def test_names_of_strangers_are_text(browser: Browser, stage: Stage) -> None:
    name = '<img src=x onerror="window.broken=1">'
    status = fakes.busy(NOW)
    partitions = tuple(
        dataclasses.replace(one, groups=tuple(dataclasses.replace(group, group=name) for group in one.groups))
        for one in status.partitions
    )
    stage.add(dataclasses.replace(status, partitions=partitions, errors=(name,)))
    with browser.open(stage.server.address) as page:
        page.wait(f"document.body.innerText.includes({name!r})")

        assert page.run("window.broken === undefined")
        assert page.run("document.querySelectorAll('main img').length") == 0
        assert page.errors() == []
