"""Study files: validation, templates, and the runs of a treatment."""
