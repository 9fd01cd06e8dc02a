"""What pages are made of: templates, style sheets and scripts."""

from __future__ import annotations

import functools
import re
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape


@functools.cache
def text_of(name: str) -> str:
    """A template, style sheet or script of the report as text."""
    folder = resources.files("penstock.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")


def template(name: str) -> Template:
    """A template that escapes what it is given and knows every name it uses."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["coded"] = coded
    return environment.from_string(text_of(name))


def coded(text: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
