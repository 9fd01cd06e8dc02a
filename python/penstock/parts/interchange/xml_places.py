"""Parser of XML that records the line of every element, for error messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from penstock.parts.interchange.platform_values import mistake


@dataclass
class Element:
    """One element: its tag, attributes, line (from 1) and child elements."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, *tags: str) -> list[Element]:
        """Child elements with one of these tags."""
        return [c for c in self.children if c.tag in tags]


def read_xml(path: Path, raw: bytes) -> Element:
    """Parse the root element. Raises BadInput for invalid XML and for entities (against entity bombs)."""
    parser = expat.ParserCreate()
    stack: list[Element] = []
    outermost: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        (stack[-1].children if stack else outermost).append(element)
        stack.append(element)

    def entity(*_: object) -> None:
        raise mistake(path, parser.CurrentLineNumber, "an entity", "XML without any")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: stack.pop()
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(raw, True)
    except expat.ExpatError as error:
        message = expat.errors.messages[error.code]
        raise mistake(path, error.lineno, f"no XML ({message})", "XML", error.offset + 1) from None
    return outermost[0]
