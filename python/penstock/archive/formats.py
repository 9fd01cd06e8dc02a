"""docs/formats.md from the schemas: `python -m penstock.archive.formats > docs/formats.md`."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.documents import DOCUMENTS
from penstock.archive.schemas import TABLES
from penstock.archive.schemas.table import BUNDLE_KEYS, BUNDLE_SCHEMA, Column

_INTRODUCTION = f"""# Formats

What `penstock run STUDY -o OUT` leaves, file by file. Tables are Parquet (zstd) and open in pandas, DuckDB, R or
anything else; each carries the units and meanings below in its own metadata (field metadata `unit` and
`meaning`, schema metadata `penstock.table`, `penstock.row`, `penstock.key`). This page is generated from
`penstock/archive/schemas/` (`python -m penstock.archive.formats`); a test holds the two together.

| path under OUT | what it is |
|---|---|
| `study.yaml` | the study as it was run |
| `plan.json` | the plan: treatments, order, generators, aliases, cautions |
| `campaign.json` | what a resumed campaign must find unchanged for runs that are valid: overrides, what `time_scale: auto` came to, and every treatment as resolved |
| `runs/<run_id>/` | one bundle per run: `manifest.json`, tables, `stdout.txt`, `stderr.txt`, `workload/` |
| `runs/<run_id>.attempt<n>/` | an earlier attempt at a run that was made again |
| `runs.parquet`, `attempts.parquet`, `means.parquet`, `effects.parquet`, `fidelity.parquet`, `confirmation.parquet`, `agreement.parquet`, `predictions.parquet`, `findings.parquet` | tables over all runs |
| `catalogue.sqlite` | the same of studies and runs for `penstock ls`; rebuilt from the bundles at any time |
| `report.html`, `figures/` | the report, and its figures as SVG and PDF |
| `work/` | prepared data while the study runs; removed when all runs are made |

A bundle is written under a hidden name (`.r001.partial`) and renamed when it is complete: a bundle that
has its name is finished.

## manifest.json

Schema `{BUNDLE_SCHEMA}`. Responses and losses are here as well as in `runs.parquet`.

| key | meaning |
|---|---|
| `schema` | `{BUNDLE_SCHEMA}` |
| `versions` | of penstock, Python and the kernel |
| `host` | facts of the host: `host_id`, processors, memory, kernel, … |
| `study_id`, `study_hash` | the study |
| `treatment_id`, `run_id`, `attempt`, `levels` | the run, and the name of each factor's level |
| `run_order`, `standard_order`, `replicate`, `block_id` | its place in the plan |
| `actions` | what was done before it because factors had changed, the strongest first (`redeploy`, `reformat`, `restart`, `remount`) |
| `seed` | of the study |
| `node_id` | the node that the command ran on |
| `command`, `prepare`, `exit_status`, `signal` | what was run and how it ended |
| `files`, `command_left_out` | of a monitored command: `path`, `size_bytes` and `sha256` of its `executable` and its `config`; words of it that there was no room for at a server |
| `memory_bytes`, `peak_memory_bytes`, `oom_kills` | limit of the run's control group [B], the most it held [B], processes killed for want of memory |
| `profiles` | SHA-256 of each disk's profile, by disk |
| `disks` | by disk: profile name, `time_scale`, and the profile as it was emulated |
| `place` | of a run in a guest: `guest` with its kernel and what it took of this host's processors (`host_cpu_ns`); of one on virtual nodes: `nodes` with addresses and disks, `put_up` (or `set` anew), and by disk `emulated` (the profile it was put up with) and `changed_before` (what was changed before this run) |
| `state` | `finished`, `failed` (status other than 0, or a signal), `timed-out` or `aborted` (by an alert) |
| `valid`, `validity`, `reason` | the analysis uses the run; it is `valid`, `degraded` or `invalid`; why it is not valid |
| `delay` | of a degraded run, what may have delayed it [s]: `late_s` (it ended so much too late at most), `early_s`, `wall_s`, `span_s` (first request to last reply), `active_s` (with a request at a disk), `served_s` (what its requests need at least), and `others_cpus` of `cpus` that other programs used; of a valid run without emulated disks only the last two |
| `cpu_ns`, `cpu_waited_ns` | processor time of the run, and time in which some task of it waited for a processor (PSI of its group; null where the kernel keeps none) |
| `resident_share` | share of the disk's files in the page cache when the workload began, by disk |
| `device_state` | by disk, what the run found when it began: `in_flight` requests (null with `unknown` where nothing tells), of an emulated disk `dirty_bytes` in its write cache, `credits` (what is there, what is stated) and `transport` (`device` or `io_uring`), of another the kernel's `device` and, with `settle.discard`, `discarded_bytes` |
| `hosts` | of a trace of nodes on several hosts, by host: `nodes`, `offset_ns` of its monotonic clock from that of the bundle's times, `offset_bound_ns`, and `receipts` by observer |
| `losses` | by observer (`trace`, `layers`, `monitor`), events or samples lost |
| `fetched` | of an experiment: what was read of servers elsewhere, each with metric, source, server, address, query, step, number of requests and points, ranges, or an `error` |
| `receipts` | by observer, what it counted and what it cost |
| `source` | of an imported trace and of `trace --disk`: `format`, `files` or `disk_id`, `basis`, and `not_known`, what the source cannot say |
| `responses` | by response, `value` and `unit`; of a degraded run also `low` and `high`, between which the undisturbed value lies (null: no bound) |
| `measured` | everything that the workload's parser found, `value` and `unit` |
| `times` | seconds: `wall_s` of the workload, `own_s` of the conductor (neither workload, prepare, changes nor declared rest) |

## Keys

Every table of a bundle begins with these columns; with the table's own key columns they name a row.
`t_ns` is always CLOCK_MONOTONIC of the host; `clocks` ties it to the time of day.

"""


def formats() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _table(BUNDLE_KEYS), "\n"]
    for table in TABLES.values():
        parts.append(f"\n## {table.name}\n\n")
        parts.append(f"`{table.place}`" if " " not in table.place else table.place)
        key = ", ".join(f"`{k}`" for k in table.key)
        parts.append(f". A row is {table.row}. Key: {key}.\n\n")
        parts.append(_table(table.columns))
        if table.open_columns:
            parts.append(f"\nBesides: {table.open_columns}.\n")
    for document in DOCUMENTS:
        parts.append(f"\n## {document.schema}\n\n{document.place}: {document.what}. JSON.\n\n")
        parts.append("| key | type | unit | meaning |\n|---|---|---|---|\n")
        parts += [f"| `{k.path}` | {k.type} | {k.unit} | {k.meaning} |\n" for k in document.keys]
    return "".join(parts)


def _table(columns: tuple[Column, ...]) -> str:
    lines = ["| column | type | unit | meaning |", "|---|---|---|---|"]
    lines += [f"| `{c.name}` | {c.type} | {c.unit} | {c.meaning} |" for c in columns]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(formats(), end="")
