"""JSON documents that penstock prints or keeps: their keys, units and meaning, for docs/formats.md.

A key such as `stages[].tasks` is that of every element of a list. Keys marked with `?` may be absent.
"""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """One key: its path, JSON type, unit ('' for none), meaning."""

    path: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Document:
    """One document: its schema id, where it comes from, what it is, its keys."""

    schema: str
    place: str
    what: str
    keys: tuple[Key, ...]


def _keys(text: str) -> tuple[Key, ...]:
    """Keys from lines of `path | type | unit | meaning`."""
    rows = (line.split("|", 3) for line in text.strip().splitlines())
    return tuple(Key(*(cell.strip() for cell in row)) for row in rows)


PREDICTION = Document(
    "penstock/prediction/1",
    "`penstock predict WORKFLOW --platform P --json`, `prediction.json` of `-o DIR`",
    "what a workload would take on a platform, predicted; never mixed with what was measured",
    _keys("""
        schema | text | | `penstock/prediction/1`
        headline? | text | | the answer in one sentence; if the model does not apply, the reason instead of a time
        workload | text | | its name
        platform | text | | its name
        makespan_s | number | s | mean over the runs simulated at the platform's own values
        interval.low | number | s | one single run ends after this …
        interval.high | number or null | s | … and before this; null: unbounded, some runs never end
        interval.level | number | | probability asked for
        interval.attained | number | | probability that the order statistics reach under the model
        interval.draws | integer | | simulated runs that it is made of
        interval.method | text | | how it was made, in words
        interval.sources | list of text | | what varied between the runs
        interval.calibration | object or null | | what measured pairs did: `pairs`, `rank`, `half_width` (share of the prediction, null: unbounded), `status`, `simulated_low`, `simulated_high` (its ends without them)
        bottleneck | object or null | | station with most of the critical path: `station`, `host`, `kind`, `words`, `utilisation`, `critical_share`, `kind_share` (all stations of its kind)
        stages[].name | text | | stages in the order of the run
        stages[].tasks | integer | | how many
        stages[].start_s | number | s | first start
        stages[].end_s | number | s | last end
        stages[].end_low_s? | number or null | s | interval of a single run's last end, from the same simulated runs as the makespan's; not in predictions made by the thousand
        stages[].end_high_s? | number or null | s | its high end; null: unbounded
        stages[].lasts_low_s? | number or null | s | interval of a single run's time from first start to last end, from the same runs
        stages[].lasts_high_s? | number or null | s | its high end; null: unbounded
        stages[].task_mean_s | number | s | mean time of a task
        stages[].task_max_s | number | s | longest task of all runs
        stages[].launch_s | number | s | sum over tasks, as are the next eight
        stages[].compute_s | number | s | computing
        stages[].read_s | number | s | reading
        stages[].write_s | number | s | writing
        stages[].manager_s | number | s | waiting for the manager
        stages[].read_bytes | number | B | read
        stages[].written_bytes | number | B | written
        stages[].local_bytes | number | B | read from and written to the task's own host
        stages[].remote_bytes | number | B | all others
        stations[].name | text | | stations, most of the critical path first, then the busiest
        stations[].host | text | | its host
        stations[].kind | text | | `net_out`, `net_in`, `loopback`, `storage`, `manager`, `client`, `slots` or `fabric`
        stations[].servers | integer | | requests served at once
        stations[].requests | number | | served
        stations[].busy_s | number | s | sum of service times
        stations[].utilisation | number | | busy time over servers and makespan
        stations[].wait_mean_s | number | s | mean time in the queue
        stations[].wait_max_s | number | s | longest time in the queue, of all runs
        stations[].queue_mean | number | | waiting on average
        stations[].queue_max | number | | most that ever waited
        stations[].critical_s | number | s | of the critical path, waiting and service
        stations[].critical_share | number | | the same over the makespan
        hosts[].name | text | | hosts of the platform
        hosts[].app_s | number | s | spent computing: the mean over the host's slots
        hosts[].storage_s | number | s | with at least one storage server busy
        hosts[].network_s | number | s | sending or receiving
        hosts[].stored_bytes | number | B | at the end
        hosts[].sent_bytes | number | B | to other hosts
        hosts[].received_bytes | number | B | from other hosts
        hosts[].tasks | number | | run there
        idle | object or null | | clients and storage hosts without a task and without data in every run: `hosts` (names), `of` (all of them), `remedy`, `text`; null: the run ended early
        bytes | object | B | `network` (between hosts), `control` of it, `loopback`, `stored`, `read`, `written`, `read_local`, `written_local`
        operations | object | | by `open`, `read`, `write`: `n`, `mean_s`, `p50_s`, `p99_s`
        energy_j | number or null | J | of all hosts counted; null: the platform gives no power
        energy | object or null | J | `total_j`, `interval` (`low`, `high` of a single run's total, or null), `by_state_j` (`idle`, `app`, `storage`, `network`, `capped`), `by_host_j`, `left_out` (hosts)
        cost | object or null | | `amount`, `interval` (as of the energy), `currency`, `hosts` paid for, `hours`, `started_hours` (paid in full)
        applies.verdict | text | | `ok`, `caution`, or `outside`: decide nothing from it
        applies.reasons[] | object | | `code`, `severity` (`note` alters no verdict), `text`
        events | integer | | of all simulations
        requests | number | | chunk requests of one run, mean
        simulations | integer | | runs simulated for all of this
        seeds | list of integers | | of the runs at the platform's own values
        wall_s | number | s | that the prediction took
        error | object or null | | what ended the run early: `kind`, `message`
        tasks[]? | object | | with `--detail`, one simulated run: `name`, `stage`, `host`, `ready_s`, `start_s`, `end_s`, the seconds and bytes of a stage, `critical`, `spans` (`op`, `file`, `start_s`, `end_s`, `bytes`, `local_bytes`)
        task_seed? | integer | | the seed of that run
        sensitivity[]? | object | | per uncertain value: `path`, `value`, `low`, `high`, `makespan_low_s` and `makespan_high_s` (null: the run cannot end), `change_low`, `change_high`, `swing_s`, `chance_s` (standard error of the larger change over the seeds), `elasticity`, `method`, `note`
        measure_next? | object | | `path` (null: nothing), `narrows` (share of the interval's width), `width_s`, `width_if_known_s`, `method`, `why`
        frequencies? | object | | `states` (`frequency`, `makespan_s`, `energy_j`, `cost`), `conflict` (the fastest does not take least energy), `statement`
        placement? | object | | with `--placement`: `files` that lie where they were found, `of` all files
        measured? | object | | with `--measured`, of which the next keys are: `runs`, `level` of its intervals, `pairs` (now in the store), `store`, and …
        measured?.measured_s | number | s | mean of the measured makespans
        measured?.measured_low_s | number or null | s | Student's interval of that mean; null: of one run
        measured?.measured_high_s | number or null | s | its high end
        measured?.ratio | number | | predicted over measured
        measured?.inside | bool | | whether all measured runs lie in the predicted interval
        measured?.inside_runs | integer | | how many do
        measured?.stages[] | object | | stages measured, by name: `name`, `predicted_s`, `low_s` and `high_s` (of one run), `measured_s`, `measured_low_s`, `measured_high_s`, `runs`, `inside_runs`, `ratio`, `error_s` (predicted less measured)
        measured?.tasks[] | object | | tasks measured, by name: the same
        measured?.task_errors | object or null | | of abs(1 − ratio) of tasks: `compared`, `mean`, `within`, `share_within`, `worst`, `worst_error`
        measured?.cancelling | object or null | | where errors of stages hide in their sum: `over` and `under` (names), `over_s`, `under_s`, `gross_s` (sum of the errors without their signs), `net_s` (with them), `measured_s`
        measured?.overlap | bool | | stages run beside each other as predicted: the makespan is not their sum
        measured?.unmatched | object | | names without a counterpart: `stages_not_predicted`, `stages_not_measured`, `tasks_not_predicted`, `tasks_not_measured`
    """),
)

CALIBRATION = Document(
    "penstock/calibration/1",
    "`calibration.json` in the state directory, `--calibration FILE` (also as Parquet of the same columns)",
    "predictions that were measured as well",
    _keys("""
        schema | text | | `penstock/calibration/1`
        pairs[].workload | text | | what ran
        pairs[].platform | text | | where; pairs of the state directory serve platforms of the same name
        pairs[].predicted | number | s | predicted
        pairs[].measured | number | s | measured
        pairs[].low | number or null | s | simulated interval, low end
        pairs[].high | number or null | s | high end
        pairs[].model | text | | what predicted: `queue`, `station`, `replay`, `blackbox`
        pairs[].source | text | | where the measurement is from
        pairs[].date | text | | day of the pair
    """),
)

MEASURED = Document(
    "penstock/measured/1",
    "`penstock predict WORKFLOW --platform P --measured FILE` reads it (YAML too); or a table of the columns `run`, "
    "`kind` (`run`, `stage`, `task`), `name`, `start_s` and `end_s` or `lasts_s` (CSV, Parquet), or an executed WfFormat instance",
    "runs that were really made",
    _keys("""
        schema | text | | `penstock/measured/1`
        runs[].makespan_s? | number | s | of the whole run; where absent, from the first start to the last end of all stages
        runs[].stages[]? | object | | `name` as the prediction has it, and `start_s` and `end_s`, or `lasts_s`; where a stage is absent, from the first start to the last end of its tasks, if all have both
        runs[].tasks[]? | object | | the same of tasks, from the start on a host (launching included) to the end
    """),
)

EXPLORATION = Document(
    "penstock/exploration/1",
    "`penstock explore WORKFLOW --platform P --json`, `exploration.json` of `-o DIR`",
    "which configuration of a platform is best for a workload, predicted, with intervals",
    _keys("""
        schema | text | | `penstock/exploration/1`
        recommendation.state | text | | `decided`, `undecided` (run those of `run`), or `none`
        recommendation.text | text | | the sentence
        recommendation.rule | text | | by which the configuration was chosen
        recommendation.configuration | object or null | | `candidate_id` and the level of every axis; null unless decided
        recommendation.run[] | object | | configurations to be run where it is undecided, as `configuration`
        recommendation.beside | object or null | | the configuration that it is compared with in the sentence
        recommendation.ratios[] | object | | `metric`, `ratio` over that of `beside`, `low`, `high` (over common seeds, at `level`), `words`
        recommendation.ties[] | object | | configurations that tie with the best, as `configuration`
        recommendation.notes | list of text | | what ties, what makes no difference, what is not known
        objective | text or null | | what was asked for; null: the Pareto front
        constraints | list of text | | that must hold
        metrics | list of text | | `makespan_s` (s), `cost` (currency), `energy_j` (J): what the platform allows
        currency | text | | of `cost`, empty without prices
        engine | object | | `name` (`grid`, `rrs`, `ga`), `why`, `complete` (everything was looked at)
        space.axes[] | object | | `name`, `keys` (paths of the platform), `levels`, `ordered`
        space.size | integer | | combinations, with those that cannot be built
        space.refused[]? | object | | levels that the store's engine refuses, removed from the axes: `axis`, `level`, `why`
        counts | object | | `configurations`, `evaluated`, `admissible`, `cannot_be_built` (by reason), `against_constraints`, `failed` (by reason), `evaluations` (simulations made), `read_from_before`
        seeds | list of integers | | the common seeds of the means in `front`, `compared` and of the best levels in `effects`
        front[] | object | | the Pareto front, the fastest first: `candidate_id`, `words`, `levels`, the metrics (means over the common seeds), `hosts`, `seeds` (their number), `tie` (with the best)
        front[].calibrated_low_s?, calibrated_high_s? | number | s | where one real run ends by the measured runs of `calibration`; also in `compared`
        compared[] | object | | what is near the best, as in `front`, with `verdict` (`best`, `worse`, `same`, `undecided`), `tie` (`same` or `undecided`) and `difference` (`mean`, `low`, `high`, `seeds`; a share of the best, or of a distance in logarithms where there is no objective; null: unbounded)
        level | number | | probability that all comparisons together keep
        not_compared | integer | | as near on the first seed, left out of the comparison
        robust | object or null | | `draws` of what is not certain of the platform; `candidates`: `share_within_5_percent`, `mean_regret`, `worst_regret`
        calibration | object or null | | measured runs: `pairs`, `rank`, `half_width` (share of the prediction; null: too few), `level`, `status` (`none`, `insufficient calibration`, `calibrated`), `verdict` (`ok`; `caution` and `outside`: too wide), `overlapping` (`candidate_id` of what is not told from the best)
        applies | object or null | | of the best: `verdict`, `reasons`
        prediction | object or null | | of the best: the same, `makespan_s`, `interval`, `idle`, `bottleneck`, `notes` on its workload (such as hints that the store's engine refuses)
        effects | object | | by metric, per axis: `share` of the variation of the logarithm, `worst_loss`, `levels` (`label`, `n`, `mean`, `best`, `loss` over the best of all)
        confirmed | object or null | | with `--confirm`: `runs` of each configuration, `level`, `tau` (Kendall's tau-b of predicted and measured makespans), `regret` (of the objective; of the time without one), `stopped`, and `rows` (`candidate_id`, `words`, `levels`, `predicted_s`, `predicted_low_s` and `predicted_high_s` of one run, `measured_s`, `measured_low_s` and `measured_high_s` of the mean, `makespans_s`, `saturated` (runs during which the host was), `error`)
        stopped | boolean | | ended before its end
        wall_s | number | s | that it took
    """),
)

CHECK = Document(
    "penstock/check/1",
    "`penstock check EXPECTED RUN --json`",
    "whether what was measured is what was expected, and what is to blame where it is not",
    _keys("""
        schema | text | | `penstock/check/1`
        expected | text | | name of the expected results
        run | text | | where the measured rows are from
        ok | boolean | | every row is OK; else the exit status is 3
        counts | object | | rows by verdict: `SLOW`, `TOO_FAST`, `NOISY`, `UNSTABLE`, `OK`
        rows[].module | text | | which part of the system
        rows[].operation | text | | what it did
        rows[].metric | text | | what was measured of it
        rows[].unit | text | | unit of the next three
        rows[].predicted | number | `unit` | expected mean
        rows[].mean | number | `unit` | of the trials
        rows[].sd | number | `unit` | standard deviation between trials
        rows[].n | integer | | trials
        rows[].tolerance | number | | how far off the mean may be, a share of `predicted`
        rows[].gap | number | | mean over `predicted`, less 1
        rows[].half_width | number | | of the mean's Student-t 95 % interval, a share of `predicted`
        rows[].variance_ratio | number or null | | measured over predicted variance; null: none was predicted, or it was 0
        rows[].verdict | text | | as in `counts`
        rows[].note | text | | why it is not OK, empty if it is
        what_if[].module | text | | with `--what-if`: which part of the system
        what_if[].operation | text | | what it did
        what_if[].metric | text | | what was measured of it
        what_if[].mean | number | the row's unit | with the change: measured × predicted with it / as it is
        what_if[].low | number | the row's unit | the measured interval's end, so scaled
        what_if[].high | number | the row's unit | the other one
        what_if[].share | number | | what the change takes away of it
        causes[].code | text | | `uneven-nodes`, `launch-skew`, `connect-retry`, `whole-second-delay`, `hot-spot`, `uneven-placement`, `lock-contention`
        causes[].severity | text | | `warning` of what is no fault of the program, else `error`
        causes[].statement | text | | what was found
        causes[].evidence | object | | module, operation and the numbers behind it
        causes[].what_to_do | text | | what to do about it
        causes[].detail | text | | further numbers in words
        blame[].step | text | | what was looked at, in this order
        blame[].state | text | | `found`, `clear`, or `no evidence` to look at
        blame[].statement | text | | what was found, or which rows are missing
        blame[].causes? | list of text | | codes of what was found
    """),
)

DOCUMENTS = (PREDICTION, MEASURED, CALIBRATION, EXPLORATION, CHECK)
