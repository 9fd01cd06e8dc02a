"""Black-box profiles: end-to-end storage performance as seen by a program, measured and learned.

`space` defines the dimensions, `plan` the points to measure (by `parts/prediction/learning/learn.py`),
`estimator` the learners, `intervals` their uncertainty, `model` the JSON format; `tasks` converts throughput
into the time of a program.
"""
