"""Terms of a page are linked to their explanation in the same page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from penstock.analyse.fidelity.fidelity_counters import __file__ as counters_file
from penstock.analyse.traces.traced_run import TracedRun
from penstock.report.glossary import entries, explained
from penstock.report.trace.page import write_trace_report
from tests.examples.report import write_page
from tests.examples.trace_page import events, write_bundle

ROOT = Path(__file__).parents[2]
LINK = re.compile(r'<a class="word" href="#([^"]+)">([^<]+)</a>')
ENTRY = re.compile(r'<dt id="(word-[^"]+)">')


def test_glossary_of_the_docs_equals_the_packaged_one() -> None:
    packed = ROOT / "python" / "penstock" / "report" / "templates" / "glossary.md"
    assert (ROOT / "docs" / "glossary.md").read_text() == packed.read_text(), "make manual"


def test_entries_are_unique_and_sorted() -> None:
    lines = [n for n in (ROOT / "docs" / "glossary.md").read_text().splitlines() if n[:1] == "-"]
    assert len(entries()) == len(lines) > 40
    forms = [form.lower() for word in entries() for form in (word.name, *word.forms)]
    assert sorted(set(forms)) == sorted(forms)
    assert len({word.anchor for word in entries()}) == len(lines)
    parts = (ROOT / "docs" / "glossary.md").read_text().split("\n## ")[1:]
    for part in parts:
        names = [n[4 : n.index("**", 4)].lower() for n in part.splitlines() if n[:1] == "-"]
        assert names == sorted(names)


def test_glossary_has_the_requested_terms() -> None:
    requested = """alias,block,confidence interval,effect,interaction,replicate,treatment,p99,page cache,
        readahead,flush,queue depth,time scale,certificate,honoured"""
    assert {each.strip() for each in requested.split(",")} <= {word.name for word in entries()}
    # the glossary explains verdicts that exclude a run
    verdicts = set(re.findall(r'"(not-honoured|host-saturated)"', Path(counters_file).read_text()))
    assert len(verdicts) == 2
    assert verdicts <= {word.name for word in entries()}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of an archived study and of a trace."""
    folder = tmp_path_factory.mktemp("pages")
    out = shutil.copytree(ROOT / "tests/golden/access-patterns-archive", folder / "out")
    trace = write_bundle(folder / "trace", events(300))
    return {
        "study": write_page(out).read_text(),
        "trace": write_trace_report(TracedRun(trace)).read_text(),
    }


@pytest.mark.parametrize("kind", ["study", "trace"])
def test_page_explains_exactly_its_linked_terms(pages: dict[str, str], kind: str) -> None:
    links, entries = LINK.findall(pages[kind]), ENTRY.findall(pages[kind])
    assert len(entries) > (8 if kind == "study" else 3)
    assert {anchor for anchor, _ in links} == set(entries)
    assert len(entries) == len(set(entries))


@pytest.mark.parametrize("kind", ["study", "trace"])
def test_only_prose_is_linked(pages: dict[str, str], kind: str) -> None:
    """Only prose has links, and each term once per section."""
    skipped = r"<(script|style|svg|table|pre|code|summary|nav)\b.*?</\1>"
    parts = list(re.finditer(skipped, pages[kind], re.DOTALL))
    sections = re.findall(r"<section.*?</section>", pages[kind], re.DOTALL)
    assert parts
    assert sections
    for part in parts:
        assert 'class="word"' not in part[0]
    for section in sections:
        anchors = [anchor for anchor, _ in LINK.findall(section)]
        assert len(anchors) == len(set(anchors))


def test_terms_are_complete_words() -> None:
    page = '<main><section><p title="flush">{}</p></section></main>'
    for text in ("flush.log", "/data/flush", "--flush", "flush_us", "&lt;flush-x&gt;", "flusher"):
        assert explained(page.format(text)) == page.format(text), text
    for text in ("a flush.", "Flushes, 3 of them", "(flush)"):
        assert 'href="#word-flush"' in explained(page.format(text)), text
    twice = explained(page.format("p99 of a treatment; p99 again"))
    assert [text for _, text in LINK.findall(twice)] == ["p99", "treatment"]
    assert ENTRY.findall(twice) == ["word-p99", "word-treatment"]


def test_names_of_the_study_are_not_linked() -> None:
    page = "<main><section><p>{}</p></section></main>"
    text = page.format("throughput with random readahead, in random order: read latency 3 ms")
    names = ("throughput", "random", "readahead", "read_latency")
    assert explained(text, names) == text
    linked = explained(page.format("random order of random requests; latency"), ["throughput"])
    assert [term for _, term in LINK.findall(linked)] == ["random", "latency"]


def test_a_term_is_linked_once_per_page() -> None:
    page = "<main><section><p>a flush</p></section><section><p>flushes</p></section></main>"
    assert len(LINK.findall(explained(page))) == 1


def test_page_without_terms_is_unchanged() -> None:
    for page in ("<main><p>nothing here</p></main>", "flush, but no page"):
        assert explained(page) == page
