"""A first study for a program: output of `penstock init -- CMD`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from penstock.spec.names import BUILT_IN
from penstock.spec.template import doubled
from penstock.workload.parsers import fio

_TEMPLATE_NAMES = ("data", *BUILT_IN)
_INTERPRETER = re.compile(r"(python|perl|ruby|node|Rscript|bash|sh)[0-9.]*")
_SAFE = re.compile(r"[A-Za-z0-9@%+=:,./_-]*")

_TEXT = """\
# A penstock study of `{program}`. Check it with `penstock plan {file}`, try it with
# `penstock run --quick {file}`, run it with `penstock run {file}`. Every key: docs/study-file.md.
penstock: 1
name: {name}
question: >
  How much does the disk cost {program}, and does memory make up for it?

# Factors: what the study varies. Texts below refer to a factor by {{name}}. The first level is coded -1,
# the second +1. A factor can be anything in these texts: an option of the program, a size, a number.
factors:
  disk:   {{levels: [hdd-7200, network-volume]}}   # storage profiles, or own JSON files; faster ones
                                               # (sata-ssd, nvme) need a larger time_scale
  memory: {{levels: [256MiB, 1GiB]}}           # page cache included

design:
  kind: full            # or {{fraction: 1}}: half of the treatments, some effects are aliased
  replicates: 2         # complete passes, each in a new random order
  seed: 1               # of this order

platform:
  nodes:
    - name: node1
      memory: "{{memory}}"
      disks:
        - name: data              # the commands below call its directory {{data}}
          profile: "{{disk}}"
          time_scale: 4           # four times slower than the real device; auto: chosen for this host

workload:
{prepare}  mutates: true         # the command changes the prepared data: each run gets a copy
{directory}  command: {command}
  timeout: 10min        # a run that takes longer counts as failed
  # expected: 5s        # expected time of a run, for the estimate of the plan
  parser: {parser}
  # quick: {{command: a shorter one}}   # command of `penstock run --quick`

responses:
{responses}
observers:
  monitor: {{interval: 1s}}      # CPU, memory, disks, network, pressure; at least 10ms
  trace: {{mode: trace}}         # every read and write of the program: file, offset, size, latency

# State at the start of each run: dirty pages written back, caches dropped; this is verified.
settle: {{drop_caches: true, resident_at_most: 1%}}

# An alert is reported, or it ends the run, which is then invalid (docs/live.md).
# alerts: [memory_available < 200 MiB for 2s then abort]
"""

_PREPARE = """\
  # prepare creates the data once, on the plain disk (fast); here {data} is the directory behind the disk
  # prepare: cp -r /somewhere/input {data}/
"""


def draft(argv: Sequence[str], name: str, file: str) -> str:
    """Text of a study of the command `argv`; it passes `penstock plan`.

    `{data}`, `{run_dir}`, `{study_dir}` and `{python}` in `argv` remain templates, other braces are literal.
    A single argument with blanks is a shell command. A program without `{data}` runs in that directory.
    Relative paths of the program and its script get the prefix `{study_dir}`: runs have another working
    directory.
    """
    argv = _from_study(argv, Path(file).parent)
    arguments = _arguments(argv)
    command = argv[0] if len(argv) == 1 and " " in argv[0] else " ".join(_quoted(a) for a in argv)
    command = _escaped(command)
    program = _program(arguments)
    kind = program if program in ("fio", "pgbench") else "none"
    if kind == "fio":
        command = _fio(command, arguments)
    directory = ""
    if "{data}" not in command:
        directory = '  directory: "{data}"   # the program runs in the disk\'s directory\n'
    return _TEXT.format(
        program=_escaped(program).replace("{{", "{").replace("}}", "}"),
        file=file,
        name=name,
        prepare=_PREPARE,
        directory=directory,
        command=_scalar(command),
        parser=f"{kind:<15} # {_parser_comment(kind)}",
        responses=_responses(kind, command),
    )


def draft_name(argv: Sequence[str]) -> str:
    """A study name from the program's name, or its script's."""
    arguments = _arguments(argv)
    program = _program(arguments)
    if arguments and program != _last_part(arguments[0]):
        program = program.partition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", program)
    return plain.strip("-._")[:64] or "study"


def _arguments(argv: Sequence[str]) -> list[str]:
    return shlex.split(argv[0]) if len(argv) == 1 and " " in argv[0] else list(argv)


def _from_study(argv: Sequence[str], place: Path) -> list[str]:
    """The command with paths of its files relative to `place`, the directory of the study."""
    arguments, named = _arguments(argv), list(argv)
    shell = len(argv) == 1 and len(arguments) > 1
    for i in range(1 + _has_script(arguments)):
        if not arguments or os.path.isabs(arguments[i]) or not os.path.isfile(arguments[i]):
            continue
        if i == 0 and "/" not in arguments[0]:
            continue  # a program on PATH
        new = f"{{study_dir}}/{os.path.relpath(arguments[i], place)}"
        if shell:
            named[0] = named[0].replace(arguments[i], new, 1)
        else:
            named[i] = new
    return named


def _has_script(arguments: Sequence[str]) -> bool:
    """True for an interpreter with a script."""
    return (
        len(arguments) > 1
        and _INTERPRETER.fullmatch(_last_part(arguments[0])) is not None
        and arguments[1][:1] != "-"
    )


def _program(arguments: Sequence[str]) -> str:
    """The name of the program: load.py for `python3 load.py`."""
    if _has_script(arguments):
        return _last_part(arguments[1])
    return _last_part(arguments[0]) if arguments else ""


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _quoted(word: str) -> str:
    """Like shlex.quote, but without quotes for `{data}` and the like."""
    bare = re.sub("|".join(rf"\{{{k}\}}" for k in _TEMPLATE_NAMES), "", word)
    return word if word and _SAFE.fullmatch(bare) else shlex.quote(word)


def _escaped(text: str) -> str:
    """Braces doubled, except for known names of templates."""
    escaped = doubled(text)
    for name in _TEMPLATE_NAMES:
        escaped = escaped.replace(f"{{{{{name}}}}}", f"{{{name}}}")
    return escaped


def _scalar(command: str) -> str:
    """A YAML text: a literal block for a long or multi-line one, else double-quoted."""
    if "\n" in command:
        return "|\n" + "\n".join(f"    {line}" for line in command.splitlines())
    escaped = command.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped}"'


def _fio(command: str, arguments: Sequence[str]) -> str:
    options = {w.partition("=")[0] for w in arguments}
    if not options & {"--directory", "--filename"}:
        command += " --directory={data}"
    if "--output-format" not in options:
        command += " --output-format=json+"
    if "--output" not in options:
        command += " --output={run_dir}/fio.json"
    return command


def _parser_comment(kind: str) -> str:
    if kind == "fio":
        return "reads fio's JSON report"
    if kind == "pgbench":
        return "reads pgbench's report on stdout"
    return "fio, pgbench, sysbench, ycsb, db_bench, hammerdb; none: wall time"


def _responses(kind: str, command: str) -> str:
    if kind == "pgbench":
        return (
            "  tps:     {from: tps, unit: 1/s, better: higher}\n"
            "  latency: {from: latency_mean, unit: ms, better: lower}\n"
        )
    if kind == "fio":
        jobs = fio.operations(command) or []
        writes = bool(jobs) and all(j.direction == "write" for j in jobs)
        way = "write" if writes else "read"
        return (
            f"  bandwidth: {{from: {way}_bandwidth, unit: MiB/s, better: higher}}\n"
            f"  p99:       {{from: {way}_p99_latency, unit: ms, better: lower}}\n"
        )
    return (
        "  wall: {from: wall_s, unit: s, better: lower}\n"
        "  # a number that the program prints, by a regular expression with one group:\n"
        "  # rate: {from: {regex: 'rate: ([0-9.]+)'}, unit: MiB/s, better: higher}\n"
        "  # a number in a JSON file that it writes to {run_dir}:\n"
        "  # rows: {from: {json: result.rows, file: out.json}, unit: rows, better: higher}\n"
    )
