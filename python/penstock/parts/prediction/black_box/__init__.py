"""Black-box profiles: what a storage gives to a program, measured end to end and learnt.

`space` says what is varied, `plan` which points are measured (by `parts/prediction/learning/learn.py`),
`estimator` learns, `intervals` says how sure, `model` keeps all of it in JSON, `tasks` turns throughput into
the time of a program.
"""
