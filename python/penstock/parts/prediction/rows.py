"""Rows of this part in the tables of `penstock.plugins`, and its verbs."""

from __future__ import annotations

ROWS = {
    "commands": {
        "workload": "penstock.parts.prediction.cli.workload",
        "predict": "penstock.parts.prediction.cli.predict",
        "explore": "penstock.parts.prediction.cli.explore",
        "learn": "penstock.parts.prediction.cli.learn",
    },
    "api": {
        "explore": "penstock.parts.prediction.api:explore",
        "predict_workflow": "penstock.parts.prediction.api:predict_workflow",
    },
    "checks": {"check_format": "penstock.parts.prediction.testing:check_format"},
    "workload-formats": {
        "penstock": "penstock.parts.prediction.workloads.formats.format:own",
        "wfformat": "penstock.parts.prediction.workloads.formats.format:wfformat",
    },
}
VERBS = {
    "Predict and choose": {
        "workload": "Describe the workload: a pattern, a traced program, WfFormat.",
        "predict": "Predict the run time of a workload, or of all treatments of a study.",
        "explore": "Search for the best configuration by time, cost or energy.",
        "learn": "Learn a model of mounted storage from measurements; predict task times.",
    },
}
