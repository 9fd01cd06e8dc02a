"""HammerDB 2 to 5: the result of a timed run of TPROC-C (TPC-C), on stdout."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import PenstockError
from penstock.workload.measured import JobSpec, Measured, Report
from penstock.workload.parsers.printed import NUMBER, Printed, check_version, several

#: new orders, and database transactions, per minute
RESPONSES: dict[str, str] = {"nopm": "1/min", "tpm": "1/min"}

_VERSION = re.compile(r"^HammerDB (?:CLI )?v(\d+)", re.MULTILINE)
_RESULT = re.compile(r"TEST RESULT\s*:\s*(.*)")
#: transactions come first to 3.2, new orders from 3.3 on
_FORMS = (
    re.compile(rf"System achieved (?P<tpm>{NUMBER}) [\w ]*?TPM at (?P<nopm>{NUMBER}) NOPM"),
    re.compile(rf"System achieved (?P<nopm>{NUMBER}) NOPM from (?P<tpm>{NUMBER}) [\w ]*?TPM"),
)
_FAILED = re.compile(r"Vuser \d+:\s*FINISHED FAILED")
_TPROC_H = re.compile(r"Completed \d+ query set\(s\) in ")


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> Report:
    """New orders and transactions per minute; PenstockError for no or several results, or failed users."""
    check_version(stdout, _VERSION, "2345", "HammerDB 2 to 5")
    results = _RESULT.findall(stdout)
    if not results and _TPROC_H.search(stdout):
        raise PenstockError("found a result of HammerDB's TPROC-H; expected one of TPROC-C")
    if failed := _FAILED.search(stdout):
        raise PenstockError(f"found {failed[0]!r}; expected all virtual users to succeed")
    if len(results) > 1:
        raise several("HammerDB", len(results))
    match = next((m for text in results for form in _FORMS if (m := form.search(text))), None)
    if match is None:
        raise PenstockError("HammerDB printed no 'TEST RESULT : System achieved … NOPM' line")
    printed = Printed("HammerDB", stdout)
    printed.learn(match.groupdict().values())
    values = {
        name: Measured(printed.number(match[name], name), unit) for name, unit in RESPONSES.items()
    }
    return Report({**values, "wall_s": Measured(wall_s, "s")})


def operations(command: str) -> list[JobSpec] | None:
    """None: a command line does not determine a database's file accesses."""
    return None
