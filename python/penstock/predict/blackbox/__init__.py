"""Black-box profiles: what a storage gives to a program, measured end to end and learnt (PR-B-1 … B-5).

`space` says what is varied, `plan` which points are measured, `measure` measures them through the conductor,
`estimator` learns, `intervals` says how sure, `model` keeps all of it in JSON, `tasks` turns throughput into
the time of a program.
"""
