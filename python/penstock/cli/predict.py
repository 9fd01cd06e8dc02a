"""penstock predict: every treatment's throughput from the trace of one and the disk profiles."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from penstock.errors import BadInput
from penstock.predict.study import predict_plan, predict_study, score
from penstock.study.load import load_study


def command(
    study: Path = typer.Argument(
        ..., help="The directory of a study that was run, or a study file."
    ),
    basis: str | None = typer.Option(
        None, "--basis", help="Treatment whose trace is used (default: the one traced most)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Rows and score as one object."),
) -> None:
    """Predict every treatment of STUDY from the trace of one of them and the disk profiles alone.

    Given a study file that was not run, the disks alone are simulated, with programs that never think.
    """
    if study.is_dir():
        if not (study / "plan.json").is_file():
            raise BadInput(
                f"{study} holds no plan.json; give the directory of a study that was run"
            )
        frame = predict_study(study, basis)
    elif study.is_file():
        frame = predict_plan(load_study(study))
    else:
        raise BadInput(f"no study {study}")
    result = score(frame)
    if as_json:
        rows = json.loads(frame.to_json(orient="records"))
        reached = None if result.treatments == 0 else result.share
        summary = {"within": result.within, "treatments": result.treatments, "share": reached}
        print(json.dumps({"predictions": rows, "score": summary}))
        return
    _show(frame.to_dict("records"), result.treatments)
    if result.treatments:
        print(
            f"{result.hits} of {result.treatments} predictions within {result.within:.0%} of what was "
            f"measured; the worst is {result.worst:.0%} off. Basis: {frame['basis_treatment'].iloc[0]}."
        )


def _show(rows: list[dict[object, object]], measured: int) -> None:
    fixed = {"treatment_id", "response", "unit", "predicted", "ci_low", "ci_high", "source", "note"}
    fixed |= {"measured_mean", "measured_n", "ratio", "basis_treatment", "is_basis"}
    factors = [str(k) for k in rows[0] if k not in fixed] if rows else []
    responses = sorted({f"{row['response']} in {row['unit']}" for row in rows})
    several = ["response"] if len(responses) > 1 else []
    table = Table(box=None, pad_edge=False)
    for name in ["", *factors, *several]:
        table.add_column(name, overflow="fold")
    for name in ["predicted", "90 % from", "to", *(("measured", "ratio", "") if measured else ())]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row[name]) for name in ["treatment_id", *factors, *several]]
        cells += [_number(row[k]) for k in ("predicted", "ci_low", "ci_high")]
        if measured:
            cells += [_number(row["measured_mean"]), _number(row["ratio"])]
            cells.append("basis" if row["is_basis"] else "")
        table.add_row(*cells)
    Console(width=100, highlight=False).print(table)
    print(f"Response: {', '.join(responses)}.")
    for note in sorted({str(row["note"]) for row in rows} - {""}):
        print(f"Note: {note}.")


def _number(value: object) -> str:
    """Four digits; a dash for what is not known."""
    return f"{value:.4g}" if isinstance(value, float) and value == value else "-"
