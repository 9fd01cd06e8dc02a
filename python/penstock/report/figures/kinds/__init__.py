"""Kinds of figures of series, one file each, rows of `plugins.FIGURE_KINDS`; protocol: `chart.Kind`."""
