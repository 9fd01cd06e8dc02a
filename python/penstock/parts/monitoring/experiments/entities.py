"""Labels of a series from the entity of its samples."""

from __future__ import annotations

from penstock.archive.series.entities import entity_labels
from penstock.parts.monitoring.experiments.points import canonical_labels


def labels_of_entity(entity: str) -> str:
    """The labels of an entity as JSON."""
    return canonical_labels(entity_labels(entity))
