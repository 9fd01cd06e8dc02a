"""Links of README and docs lead to existing files and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("studies/**/*.md")])
_LINK = re.compile(r"(?<!\\)\[[^\]\n]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, in GitHub's form, and of its HTML."""
    text = page.read_text()
    names = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(
        r"^#{1,6} +(.+?) *#*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M
    ):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in names:
            number += 1
        names.add(name)
    return names


def dead(page: Path) -> list[str]:
    """Dead links of a page, and missing pages that it names."""
    named = re.findall(r"`((?:docs/|adr/)[\w./-]+\.md)`", page.read_text())
    broken = [
        n
        for n in named
        if not any((folder / n).exists() for folder in (page.parent, ROOT, ROOT / "docs"))
    ]
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    assert dead(page) == []


def test_the_index_links_every_page_of_the_docs() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {target.partition("#")[0] for target in _LINK.findall(index.read_text())}
    assert linked >= {page.name for page in index.parent.glob("*.md")} - {index.name}


def test_a_dead_link_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "# A part of it\n[x](#a-part-of-it) [y](b.md) [z](#none) `[no](c.md)` `docs/none.md` "
        "<https://x.org> `docs/study-file.md`\n"
    )
    assert dead(page) == ["docs/none.md", "b.md", "#none"]
