"""Results of the analysis of a study."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.schemas.table import TableSchema, columns

TABLES = (
    TableSchema(
        "effects",
        "OUT/effects.parquet",
        "one term of the model of one response",
        ("response", "term"),
        columns("""
            response | text | | the response
            term | text | | a factor, an interaction (`disk:pattern`), a block term, or `residual`
            coefficient | f64 | response's | q: change per coded unit, on `scale`
            effect | f64 | response's | 2q: mean at the second level minus mean at the first, on `scale`
            ci_low | f64 | response's | 95 % Student-t interval of the coefficient, low end
            ci_high | f64 | response's | high end
            effect_ci_low | f64 | response's | 95 % interval of the effect, low end
            effect_ci_high | f64 | response's | high end
            variation_share | f64 | % | share of the sum of squares of all rows (the variation, where they are orthogonal); null where a treatment has no valid run
            p_value | f64 | | two-sided, Student t
            aliases | text | | terms that this design cannot tell from it
            df | i64 | | degrees of freedom
            stratum | text | | what the term is judged by: `run`, or settings that were kept: `whole_plot`, `strip`
            df_error | f64 | | degrees of freedom of the error that the term is judged by
            p_holm | f64 | | p-value, all terms of the response judged together: after Holm; where all are by Lenth, of his simultaneous margin; of a sequential study all its looks together
            p_bh | f64 | | p-value by the false discovery rate (Benjamini & Hochberg)
            scale | text | | `linear`, or that of which coefficient, effect and intervals are: `log` (natural), `box-cox`, `rank`
            ratio | f64 | | second level over the first; of scale `log` only
            ratio_ci_low | f64 | | its 95 % interval, low end
            ratio_ci_high | f64 | | high end
            level | f64 | | chance of any false effect that this analysis may take: 0.05, or what the spending rule leaves to it
            bias | f64 | response's | how far the effect may be off if degraded runs are corrected in the worst way, in the intervals and p-values; null without
            correlations | text | | the estimates that this one depends on most, with their correlation; of lost runs only
        """),
        open_columns="further statistics of the analysis: sums of squares (type III; `_1`, `_2`: types I and II), "
        "mean square, F, standard error, method, number of runs, variance of a stratum",
    ),
    TableSchema(
        "residuals",
        "OUT/residuals.parquet",
        "one run of the analysis of one response",
        ("response", "run_id"),
        columns("""
            response | text | | the response
            run_id | text | | the run
            treatment_id | text | | the treatment
            run_order | i64 | | place in the order of the plan, from 1
            scale | text | | the scale of the fit, as in `effects`
            fitted | f64 | scale's | as the model has it
            residual | f64 | scale's | measured less fitted
            studentised | f64 | | externally studentised residual; null where the fit leaves it no freedom
            flag | text | | why the run lies far from others; it is analysed all the same
        """),
    ),
    TableSchema(
        "trends",
        "OUT/trends.parquet",
        "one orthogonal contrast of a quantitative factor of three levels or more",
        ("response", "factor", "contrast"),
        columns("""
            response | text | | the response
            factor | text | | the factor
            contrast | text | | `linear`, `quadratic` (curvature), `cubic`, of the real values of the levels
            coefficient | f64 | scale's | change per unit of the contrast; of the linear one per unit of the factor
            effect | f64 | scale's | coefficient times the contrast's range
            effect_ci_low | f64 | scale's | 95 % interval of the effect, low end
            effect_ci_high | f64 | scale's | high end
            p_value | f64 | | two-sided, Student t
            df_error | f64 | | degrees of freedom of the error
            scale | text | | the scale of the fit, as in `effects`
        """),
    ),
    TableSchema(
        "surface",
        "OUT/surface.parquet",
        "one coefficient, or one test, of the surface of a response (studies that look for the best setting)",
        ("response", "term"),
        columns("""
            response | text | | the response
            term | text | | `mean`, a factor, `a:b`, the square `a²`; or the test `pure error`, `lack of fit`, `curvature at the centre`
            coefficient | f64 | scale's | per coded unit: numbers run from −1 (lowest level) to +1 (highest)
            standard_error | f64 | scale's | its standard error
            ci_low | f64 | scale's | 95 % interval, low end
            ci_high | f64 | scale's | high end
            p_value | f64 | | Student t; of a test F
            df | i64 | | degrees of freedom
            sum_of_squares | f64 | scale's² | of a test
            df_error | f64 | | degrees of freedom of what it is judged by
            scale | text | | the scale of the fit, `linear`, `log` or `box-cox`
            power | f64 | | the Box-Cox power, of largest likelihood for this surface; null on other scales
            geometric_mean | f64 | response's | of the runs, which a Box-Cox scale is of values over; null on other scales
        """),
    ),
    TableSchema(
        "optimum",
        "OUT/optimum.parquet",
        "one setting that stands out: of one response by its surface, or of all by desirability",
        ("response", "what"),
        columns("""
            response | text | | the response, or `all responses`
            what | text | | `best` within the levels; `stationary`: the surface is level; `chosen`: largest desirability
            at | text | | JSON, factor: number or level
            nature | text | | of a stationary point: maximum, minimum, saddle or ridge, and the intervals of its numbers
            value | f64 | response's | predicted there; of `all responses` the desirability
            ci_low | f64 | response's | 95 % interval of the mean, low end
            ci_high | f64 | response's | high end
            run_low | f64 | response's | 95 % interval of one run, low end
            run_high | f64 | response's | high end
        """),
    ),
    TableSchema(
        "means",
        "OUT/means.parquet",
        "one treatment of one response by its valid runs, or one level of one factor over the combinations that all its levels have",
        ("response", "kind", "levels"),
        columns("""
            response | text | | the response
            unit | text | | its unit
            kind | text | | `treatment` or `level`
            treatment_id | text | | the treatment; null of a level
            factor | text | | the factor of a level; null of a treatment
            levels | text | | JSON, factor: level
            rank | i64 | | 1 is the best
            mean | f64 | response's | of the runs; of a level: of the treatments' means
            ci_low | f64 | response's | 95 % Student-t interval of the mean, low end; null without replicates
            ci_high | f64 | response's | high end
            times_best | f64 | | how many times better the best is, 1 for the best; null where a value is not above 0
            times_best_low | f64 | | 95 % interval for all treatments together, low end; null of a level, and without replicates
            times_best_high | f64 | | high end
            n | i64 | | runs
            verdict | text | | `best`; `as-good`: not told from the best, and at most 5 % worse; `undecided`: not told from it; `worse`; empty of a level, and without replicates
        """),
    ),
    TableSchema(
        "findings",
        "OUT/findings.parquet",
        "one statement of the analysis",
        ("code", "statement"),
        columns("""
            code | text | | stable code
            severity | text | | how much it matters
            statement | text | | in plain words
            evidence | text | | the rows behind it
            what_to_do | text | | what to do
            detail | text | | the statistics behind it, in words
            confidence | text | | of a conclusion: `clear` (its interval excludes the alternative), `likely` (so does the interval with the bounds of degraded runs) or `open` (it cannot be decided)
        """),
        open_columns="further fields of a finding",
    ),
)
