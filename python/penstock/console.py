"""Rich's console for text of other programs, without markup and control sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import console, progress
from rich.segment import Segment
from rich.text import Text

from penstock.errors import escaped


class Console(console.Console):
    """A console without markup, emoji codes and highlighting; control characters in text are escaped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False} | settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Escape before Rich measures the text."""
        return super().render_str(escaped(text), **settings)

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Escape text, but not Rich's own control sequences, such as those of progress bars."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escaped(segment.text))


class TextColumn(progress.TextColumn):
    """A column of a progress bar, without markup; control characters are escaped."""

    def __init__(self, text_format: str, **settings: Any) -> None:
        super().__init__(text_format, **{"markup": False} | settings)

    def render(self, task: progress.Task) -> Text:
        """Escape before Rich measures the text."""
        text = super().render(task)
        text.plain = escaped(text.plain)
        return text
