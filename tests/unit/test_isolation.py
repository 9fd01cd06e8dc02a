"""What a virtual node is let: the list itself, and that page, `doctor` and code say the same of it."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.host.nodes import system_calls
from penstock.host.nodes.isolation import DOES_NOT_ISOLATE, ISOLATES, device_at, isolation_of
from penstock.spec.privileges import CAPABILITIES, parse_privilege

DOCS = Path(__file__).parents[2] / "docs"
NEEDS_LIBRARY = pytest.mark.skipif(bool(system_calls.missing()), reason="needs libseccomp")


def test_the_page_says_the_two_sentences_of_the_code() -> None:
    page = re.sub(r"\s+", " ", (DOCS / "emulation.md").read_text())
    assert f"{ISOLATES} {DOES_NOT_ISOLATE}" in page


def test_the_page_lists_the_capabilities() -> None:
    page = re.sub(r"\s+", " ", (DOCS / "emulation.md").read_text())
    assert f"| {', '.join(isolation_of(()).capabilities)};" in page


def test_no_call_is_let_and_refused() -> None:
    for held in ((), ("SYS_ADMIN",), CAPABILITIES):
        let = {
            n for names, error, condition in system_calls.rules(held) for n in names if not error
        }
        refused = {n for names, error, _ in system_calls.rules(held) for n in names if error}
        assert not let & refused
        assert {"add_key", "userfaultfd"} <= refused
    assert {"mount", "reboot", "clone3"} <= let


@NEEDS_LIBRARY
def test_filters_are_programs_of_the_kernel_and_differ_by_what_is_let() -> None:
    plain, more = (system_calls.compiled(held) for held in ((), ("SYS_ADMIN",)))
    for program in (plain, more):
        assert len(program) % 8 == 0
        assert struct.unpack_from("HBBI", program) == (
            0x20,
            0,
            0,
            4,
        )  # loads the architecture first
    assert plain != more


@pytest.mark.parametrize("name", ["SYS_TIME", "/dev/fuse", "/dev/net/tun", "/dev/disk0-a.b"])
def test_privileges(name: str) -> None:
    assert parse_privilege(name) == name


@pytest.mark.parametrize(
    "name", ["", "sys_time", "ALL", "/dev", "/dev/", "/dev/../etc/shadow", "/dev/a/.."]
)
def test_what_is_no_privilege(name: str) -> None:
    with pytest.raises(ValueError, match="a capability, such as"):
        parse_privilege(name)


def test_a_device_is_one() -> None:
    assert device_at("/dev/null").rule == "c 1:3 rw"
    with pytest.raises(PenstockError, match="no device"):
        device_at("/etc/hosts")
