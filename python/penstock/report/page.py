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


def coded(text: str) -> Markup:
    """A sentence with text between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
