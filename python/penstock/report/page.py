"""Parts of pages: templates, style sheets and scripts."""

from __future__ import annotations

import functools
import re
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape


@functools.cache
def text_of(name: str, package: str = "penstock.report") -> str:
    """A template, style sheet or script of `package` as text."""
    folder = resources.files(package) / "templates"
    return (folder / name).read_text(encoding="utf-8")


def template(name: str, package: str = "penstock.report") -> Template:
    """A template that escapes its values, rejects undefined names, and can import `macros.html.j2`."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(text_of),
    )
    environment.filters["coded"] = coded
    return environment.from_string(text_of(name, package))


#: a space between a number and its unit, and the dash of a range
_UNIT_SPACE = re.compile(r"(?<=\d) (?=%|[kKMGTPEµmnp]?i?(?:B|s|bit|Hz|W|J|V)\b|min\b|h\b)")
_RANGE_DASH = re.compile(r"(?<=\d)–(?=\d)")


def coded(text: str) -> Markup:
    """A sentence with text between backticks as code, and without line breaks in ranges and before units."""
    parts = re.split(r"`([^`]+)`", str(escape(text)))
    parts[::2] = [unbroken(part) for part in parts[::2]]
    parts[1::2] = [f"<code>{code}</code>" for code in parts[1::2]]
    return Markup("".join(parts))


def unbroken(text: str) -> str:
    """A text with no-break spaces before units and word joiners around the dashes of ranges."""
    return _RANGE_DASH.sub("\u2060–\u2060", _UNIT_SPACE.sub("\u00a0", text))
