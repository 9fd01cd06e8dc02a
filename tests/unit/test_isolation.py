"""Isolation of virtual nodes: system calls, devices and privileges, as documented."""

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


def test_documentation_has_the_sentences_of_the_code() -> None:
    page = re.sub(r"\s+", " ", (DOCS / "emulation.md").read_text())
    assert f"{ISOLATES} {DOES_NOT_ISOLATE}" in page


def test_documentation_lists_the_capabilities() -> None:
    page = re.sub(r"\s+", " ", (DOCS / "emulation.md").read_text())
    assert f"| {', '.join(isolation_of(()).capabilities)};" in page


def test_no_system_call_is_allowed_and_refused() -> None:
    for privileges in ((), ("SYS_ADMIN",), CAPABILITIES):
        allowed = {
            n
            for names, error, condition in system_calls.rules(privileges)
            for n in names
            if not error
        }
        refused = {n for names, error, _ in system_calls.rules(privileges) for n in names if error}
        assert not allowed & refused
        assert {"add_key", "userfaultfd"} <= refused
    assert {"mount", "reboot", "clone3"} <= allowed


@NEEDS_LIBRARY
def test_filters_are_bpf_programs_and_depend_on_privileges() -> None:
    plain, privileged = (system_calls.compiled(privileges) for privileges in ((), ("SYS_ADMIN",)))
    for program in (plain, privileged):
        assert len(program) % 8 == 0
        assert struct.unpack_from("HBBI", program) == (
            0x20,
            0,
            0,
            4,
        )  # first instruction: load the architecture
    assert plain != privileged


@pytest.mark.parametrize("name", ["SYS_TIME", "/dev/fuse", "/dev/net/tun", "/dev/disk0-a.b"])
def test_privileges(name: str) -> None:
    assert parse_privilege(name) == name


@pytest.mark.parametrize(
    "name", ["", "sys_time", "ALL", "/dev", "/dev/", "/dev/../etc/shadow", "/dev/a/.."]
)
def test_bad_privileges(name: str) -> None:
    with pytest.raises(ValueError, match="a capability, such as"):
        parse_privilege(name)


def test_device_rule() -> None:
    assert device_at("/dev/null").rule == "c 1:3 rw"
    with pytest.raises(PenstockError, match="no device"):
        device_at("/etc/hosts")
