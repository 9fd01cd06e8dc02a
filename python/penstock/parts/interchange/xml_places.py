"""XML with the line of every element, for mistakes that say where they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from penstock.parts.interchange.platform_values import mistake


@dataclass
class Element:
    """One element: its name, attributes, line, and the elements in it."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, *tags: str) -> list[Element]:
        """The elements in it with one of these names."""
        return [c for c in self.children if c.tag in tags]


def read_xml(path: Path, raw: bytes) -> Element:
    """The outermost element. Raises BadInput for what is no XML, and for entities (they can be bombs)."""
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
        words = expat.errors.messages[error.code]
        raise mistake(path, error.lineno, f"no XML ({words})", "XML", error.offset + 1) from None
    return outermost[0]
