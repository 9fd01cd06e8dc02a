"""Names: reserved columns of penstock, and names in templates other than factors and disks."""

from __future__ import annotations

from penstock.text import like

#: columns of penstock's own tables, invalid for factors, responses and disks
RESERVED = frozenset(
    """study_id treatment_id run_id attempt host_id node_id disk_id phase_id t_ns run_order
    standard_order replicate block block_id round whole_plot strip valid validity delay_share others_cpus
    reason state source seed levels
    wall_s start_ns end_ns start_realtime_ns exit_status signal timed_out response term coefficient
    effect ci_low ci_high effect_ci_low effect_ci_high variation_share p_value aliases df predicted
    measured_mean ratio basis_treatment residual stdout stderr manifest""".split()
)

#: names in all templates: the run's own directory, the study file's directory, this Python
BUILT_IN = ("run_dir", "study_dir", "python")

_FORBIDDEN = set(":*=,{}\"'\\\n\r\t|`")


def name_fault(name: str) -> str | None:
    """Expected form of an invalid `name` of a factor, level, response or disk; None for a valid one."""
    if not name or name != name.strip():
        return "a name of at least one character, without blanks around it"
    if len(name) > 64:
        return "a name of at most 64 characters"
    if set(name) & _FORBIDDEN or not name.isprintable():
        return "a name without : * = , | { } quotes, backslash or control characters"
    return None


def suggestion(name: str, names: list[str]) -> str:
    """` (did you mean 'x'?)`, or an empty text."""
    near = like(name, names)
    return f" (did you mean '{near[0]}'?)" if near else ""


def listed(names: list[str]) -> str:
    """`a, b or c`."""
    if len(names) <= 1:
        return "".join(names)
    return ", ".join(names[:-1]) + " or " + names[-1]


#: names in texts of the workload, unless a factor has that name: the node of the command, and all nodes,
#: separated by blanks
OF_NODES = ("node", "nodes")
#: the same for the mount point of the shared store, if the platform has one
OF_STORE = "store"
