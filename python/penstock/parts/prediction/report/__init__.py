"""Pages, figures and text of predictions and explorations."""
