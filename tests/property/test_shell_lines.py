"""Values in lines for a shell: any text remains exactly one word."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spec.template import fill_line

SAYS = 'says() { printf "%s\\n" "$#" "$1"; }\n'
LINES = [
    "says {x}",
    "says '{x}'",
    'says "{x}"',
    "says ''{x}",
    'says "$(printf %s {x}; echo .)"',
    'says "$(printf %s "{x}"; echo .)"',
    "says `printf %s '\"'` >/dev/null; says {x}",
    'says "`printf %s {x}; echo .`"',
    "(says {x})",
    "true # don't\nsays {x}",
    "# it's\n# isn't\nsays {x}",
    "true # {x} don't\nsays {x}",
    'A="#\'" # "\nsays {x}',
    "true it\\'s; says {x}",
    'says "\\"{x}"',
    "true ${{HOME#\\'}}; says {x}",
]
VALUES = st.text(
    st.characters(blacklist_characters="\0\r", blacklist_categories=["Cs"]), min_size=1, max_size=20
)


@settings(max_examples=60)
@given(value=st.one_of(VALUES, st.text("'\"`$(){}\\\\ ;#x", min_size=1, max_size=12)))
@pytest.mark.parametrize("line", LINES)
def test_a_value_is_one_word_in_any_position(line: str, value: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", SAYS + fill_line(line, {"x": value})], capture_output=True, check=False
    )
    assert done.stderr == b""
    before = b'"' if line == 'says "\\"{x}"' else b""
    after = b"." if "echo ." in line else b""
    assert done.stdout == b"1\n" + before + value.encode() + after + b"\n"


def test_plain_names_and_empty_values_are_not_quoted() -> None:
    filled = fill_line(
        "run {nodes} {none} {one}", {"nodes": "a b", "none": "", "one": "c d"}, frozenset({"nodes"})
    )
    assert filled == "run a b  'c d'"
