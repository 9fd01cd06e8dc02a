"""`penstock serve` of studies: the list, runs that link to their traces, the report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.parts.server.traces import Served
from tests.examples.trace_page import events, write_bundle
from tests.unit.browser import opened
from tests.unit.test_named_bundles import study  # noqa: F401
from tests.unit.test_serve_guarded import Server

REPORT = """<!doctype html><html><head><title>T</title></head><body><main><h1>Which disk?</h1>
<a href="#answer">a</a> <a href="runs/r002/report.html">r002</a> <a href="runs/r006/report.html">r006</a>
<a href="figures/effects.svg">SVG</a></main><script>window.planted = 1</script></body></html>"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, study: Path) -> Iterator[Server]:  # noqa: F811
    place = tmp_path_factory.mktemp("served")
    out = shutil.copytree(study, place / "out")
    (out / "report.html").write_text(REPORT)
    (out / "study.yaml").write_text("name: disks\nquestion: Which disk?\n")
    single_trace = write_bundle(place / "alone", events(100))
    running = Server(place, out, single_trace, f"{out}:t02", "--cache", place)
    yield running
    running.process.terminate()
    running.process.wait(60)
    running.log.close()


def test_studies_runs_and_traces_are_listed(server: Server) -> None:
    (listed_study,) = server.get("/api/studies", **server.auth_headers).json()
    assert (listed_study["name"], listed_study["question"], listed_study["report"]) == (
        "disks",
        "Which disk?",
        True,
    )
    runs = {run["run_id"]: run for run in listed_study["runs"]}
    assert [runs[r]["trace"] for r in ("r001", "r002", "r006", "r007")] == [0, 1, None, 5]
    assert runs["r003"]["valid"] is False
    assert runs["r001"]["responses"] == {"rate": {"value": 101.0, "unit": "1/s"}}
    traces = server.get("/api/traces", **server.auth_headers).json()
    names = [trace["name"] for trace in traces]
    assert names == [
        *(f"out:{r}" for r in ("r001", "r002", "r003", "r004", "r005", "r007")),
        *("alone", "out:r002", "out:r004"),
    ]


def test_the_report_links_only_to_served_traces(server: Server) -> None:
    page = server.get("/api/studies/0/page", **server.auth_headers).text
    assert '<a href="/traces/1">r002</a> <a >r006</a>' in page
    assert '<a href="#answer">' in page
    assert "figures/" not in page
    assert server.get("/api/studies/1/page", **server.auth_headers).status_code == 404


def test_a_browser_goes_from_the_list_to_a_report_and_a_trace(
    server: Server, tmp_path: Path
) -> None:
    with opened(tmp_path) as browser:
        browser.open(f"{server.url}/#token={server.token}")
        browser.awaits("document.body.innerText.includes('1 study, 9 traces')")
        assert browser.value("document.querySelectorAll('#list tbody tr').length") == 7 + 3
        # traces of studies are listed with their studies
        assert browser.value("document.body.innerText.includes('9 traces, 6 of runs of studies')")
        assert browser.value("document.querySelectorAll('#list > .scroll').length") == 0
        browser.click('a[href="/studies/0"]')
        browser.awaits("document.querySelector('h1')?.innerText === 'Which disk?'")
        assert not browser.value("window.planted")  # the policy blocks a script in the report
        browser.click('a[href="/traces/1"]')
        browser.awaits("document.querySelector('canvas[data-panel=number]')?.hasAttribute('width')")
        browser.click('main a[href="/"]')
        browser.awaits("document.body.innerText.includes('9 traces')")


def test_damaged_and_misnamed_runs_are_not_served(study: Path, tmp_path: Path) -> None:  # noqa: F811
    out = shutil.copytree(study, tmp_path / "out")
    (out / "runs" / "r002" / "files.parquet").write_bytes(b"no")
    for name in (":r002", ":t02", ":r006", ":t99"):
        with pytest.raises(BadInput):
            Served([Path(f"{out}{name}")], tmp_path)
    # one damaged run of a study does not block the others
    served = Served([out], tmp_path)
    assert len(served.trace(0).page()) > 1000
    with pytest.raises(BadInput, match=r"files\.parquet"):
        served.trace(1).page()
    served.close()
