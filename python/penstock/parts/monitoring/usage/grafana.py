"""Grafana's files for our dashboards: provisioning of the data source, and a dashboard's JSON each.

The data source is of the simple-JSON kind; `penstock serve` answers its calls (`http/dashboards.py`).
A target is `DASHBOARD.PLOT;EXPERIMENT;ROW`; `ROW` is a host or a tenant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.parts.monitoring.usage.dashboards import DASHBOARDS, MOST_BESIDE, Dashboard, Plot
from penstock.writing import atomic_file

#: the plugin that speaks simple JSON
PLUGIN = "simpod-json-datasource"
SOURCE = "penstock"
#: a target that is the marks of an experiment, as a table
MARKS = "marks"
_WIDE, _HIGH = 24, 7
#: version of the dashboards' schema (Grafana 9)
_SCHEMA = 36


def target(dashboard: Dashboard, plot: Plot, experiment: str, row: str) -> str:
    """Query of a panel to the data source."""
    return f"{dashboard.key}.{plot.key};{experiment};{row}"


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """A dashboard as Grafana reads it: a row that is repeated for each host or tenant, with its plots."""
    source = {"type": PLUGIN, "uid": SOURCE}
    panels: list[dict[str, Any]] = [
        {
            "id": 1,
            "type": "row",
            "title": "$row",
            "collapsed": False,
            "repeat": "row",
            "gridPos": {"x": 0, "y": 0, "w": _WIDE, "h": 1},
            "panels": [],
        }
    ]
    for number, plot in enumerate(dashboard.plots):
        beside = min(MOST_BESIDE, len(dashboard.plots))
        width = _WIDE // beside
        place = {"x": number % beside * width, "y": 1 + number // beside * _HIGH}
        defaults: dict[str, Any] = {
            "unit": plot.grafana,
            "min": 0,
            "custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"},
        }
        if plot.most is not None:
            defaults["max"] = plot.most
        panels.append(
            {
                "id": number + 2,
                "type": "timeseries",
                "title": plot.title,
                "datasource": source,
                "gridPos": {**place, "w": width, "h": _HIGH},
                "fieldConfig": {"defaults": defaults, "overrides": []},
                "options": {
                    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                    "tooltip": {"mode": "multi", "sort": "desc"},
                },
                "targets": [
                    {
                        "refId": "A",
                        "datasource": source,
                        "type": "timeserie",
                        "target": target(dashboard, plot, "$experiment", "$row"),
                    }
                ],
            }
        )
    return {
        "uid": f"penstock-{dashboard.key}",
        "title": f"penstock: {dashboard.title}",
        "description": dashboard.about,
        "tags": ["penstock"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": _SCHEMA,
        "version": 1,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "fiscalYearStartMonth": 0,
        "links": [],
        "panels": panels,
        "templating": {
            "list": [
                _variable("experiment", "Experiment", "experiments", several=False),
                _variable("row", dashboard.per.title(), f"rows;{dashboard.key};$experiment"),
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Marks",
                    "datasource": source,
                    "enable": True,
                    "iconColor": "rgba(0, 114, 178, 1)",
                    "target": {"refId": "A", "type": "table", "target": f"{MARKS};$experiment"},
                }
            ]
        },
    }


def _variable(name: str, label: str, query: str, *, several: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": {"type": PLUGIN, "uid": SOURCE},
        "query": query,
        "refresh": 2,
        "sort": 0,
        "multi": several,
        "includeAll": several,
        "hide": 0,
        "skipUrlSync": False,
        "current": {"selected": True, "text": "All", "value": "$__all"}
        if several
        else {"selected": True, "text": "", "value": ""},
        "options": [],
        "regex": "",
    }


def source_yaml(url: str) -> str:
    """Provisioning of the data source; the token is taken from Grafana's own environment."""
    return f"""apiVersion: 1
datasources:
  - name: penstock
    uid: {SOURCE}
    type: {PLUGIN}
    access: proxy
    url: {json.dumps(url.rstrip("/") + "/grafana")}
    jsonData:
      httpHeaderName1: Authorization
    secureJsonData:
      httpHeaderValue1: Bearer $PENSTOCK_TOKEN
"""


def provider_yaml(directory: Path) -> str:
    """Provisioning of the dashboards in a directory."""
    return f"""apiVersion: 1
providers:
  - name: penstock
    type: file
    disableDeletion: false
    options:
      path: {json.dumps(str(directory))}
"""


def write(directory: Path, url: str) -> list[Path]:
    """Writes `provisioning/` (data source, provider) and `dashboards/*.json` into a directory."""
    if not url.startswith(("http://", "https://")) or any(c.isspace() for c in url):
        raise BadInput(f"found server {url!r}; expected http://HOST:PORT or https://HOST:PORT")
    boards = (directory / "dashboards").resolve()
    texts = {
        directory / "provisioning/datasources/penstock.yaml": source_yaml(url),
        directory / "provisioning/dashboards/penstock.yaml": provider_yaml(boards),
    }
    for dashboard in DASHBOARDS.values():
        text = json.dumps(dashboard_json(dashboard), indent=2) + "\n"
        texts[directory / "dashboards" / f"{dashboard.key}.json"] = text
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
    return list(texts)
