"""Predictions, and the measurements they are checked against."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.schemas.table import TableSchema, columns

TABLES = (
    TableSchema(
        "predictions",
        "OUT/predictions.parquet",
        "one response of one treatment, predicted (never mixed with measured rows)",
        ("treatment_id", "response"),
        columns("""
            treatment_id | text | | the treatment
            response | text | | the response
            predicted | f64 | response's | predicted mean
            ci_low | f64 | response's | interval, low end
            ci_high | f64 | response's | interval, high end
            measured_mean | f64 | response's | mean of the valid runs
            ratio | f64 | | predicted over measured
            source | text | | the model: `station` (operations of the command), `replay` (traced calls)
            basis_treatment | text | | the treatment whose trace it comes from
            calibration | text | | `calibrated` by the other treatments' residuals, or `insufficient calibration`
        """),
        open_columns="one text column per factor, and what the model adds",
    ),
    TableSchema(
        "calibration",
        "OUT/calibration.parquet",
        "one prediction that was measured as well: what calibrates further intervals",
        ("workload", "platform"),
        columns("""
            workload | text | | the study and the response
            platform | text | | the treatment
            predicted | f64 | response's | predicted mean
            measured | f64 | response's | mean of the valid runs
            low | f64 | response's | simulated interval, low end, where it was kept
            high | f64 | response's | high end
            model | text | | what predicted: `station`, `replay`
            source | text | | the trace that it came from
            date | text | | the day, where it was kept
        """),
    ),
    TableSchema(
        "measured",
        "RUN of `penstock check EXPECTED RUN`, Parquet or CSV, made by the system that is checked",
        "one value measured of one operation of one module in one trial",
        ("module", "operation", "metric", "trial", "node", "window"),
        columns("""
            module | text | | which part of the system: `client`, `storage`, `manager`, …
            operation | text | | what it did: `open`, `read`, `write`, …
            metric | text | | `client_time` of a request, `server_time` (reception to response), `transfer_time` (of a MiB that one node holds), `connect_time`, `lock_wait`, `launch_time`, `in_flight` (mean in a window), `bytes`, or any other; may be absent where one is expected
            trial | text | | which repetition; several rows of one are its requests, and count by their mean
            value | f64 | (`unit`) | measured
            unit | text | | unit of the value; absent or empty: that of the expected row, `s` of times
            node | text | | which node of the module, where there are several; may be absent
            window | i64 | | which window of the trial (of 100 ms, say) an `in_flight` is of; may be absent
        """),
    ),
    TableSchema(
        "evaluations",
        "DIR/evaluations.parquet of `penstock explore -o DIR`",
        "one configuration predicted once",
        ("candidate_id", "seed", "draw"),
        columns("""
            candidate_id | text | | the configuration: c and its number in the space, the last axis varying fastest
            seed | i64 | | of the simulation, the same random numbers for every configuration
            draw | i64 | | 0: the platform's own values; else the number of the draw of what is not certain of it
            source | text | | the model, `queue`
            makespan_s | f64 | s | predicted
            cost | f64 | (currency) | of all hosts, in the platform's currency; null without prices
            energy_j | f64 | J | of all hosts that count; null without powers
            hosts | i64 | | how many the configuration takes
            network_bytes | i64 | B | sent between hosts
            requests | i64 | | chunk requests served
            events | i64 | | simulated
            bottleneck | text | | kind of station with most of the critical path
            error | text | | what ended the run early (a full store), empty if nothing did
        """),
        open_columns="one text column per axis (its level)",
    ),
)
