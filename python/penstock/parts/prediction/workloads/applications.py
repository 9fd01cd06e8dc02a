"""Two applications as described by Costa 2014: BLAST and Montage (table 3.4).

The source has neither the sizes of BLAST's files nor any computing times: they were assumed before any
comparison, and docs/workload-file.md lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.synthetic import MIB
from penstock.parts.prediction.workloads.task import (
    File,
    Hints,
    Operation,
    Task,
    compute,
    full_reads,
    full_writes,
)
from penstock.parts.prediction.workloads.workflow import Workload

#: assumed: bytes of BLAST's database, by size
DATABASE_BYTES = {"small": 100 * MIB, "medium": 1000 * MIB, "large": 10000 * MIB}
#: images of Montage by size; large is the published one
IMAGES = {"small": 10, "medium": 96, "large": 955}

_QUERY_BYTES, _ANSWER_BYTES = 1000, 5000

_LARGE_IMAGES, _LARGE_OVERLAPS = 955, 2833
_KB, _MB, _GB = 10**3, 10**6, 10**9
_HEADER_BYTES = 5760
_GOLDEN = 0.6180339887498949

#: share of a task's time that is input and output [Costa 2014, Table 3.4]
_IO_SHARE = {
    "mProject": 0.10,
    "mImgTbl": 0.05,
    "mOverlaps": 0.003,
    "mDiff": 0.48,
    "mFitPlane": 0.05,
    "mConcatFit": 0.005,
    "mBgModel": 0.001,
    "mBackground": 0.46,
    "mAdd": 0.49,
    "mJPEG": 0.18,
}


def blast(
    width: int = 19,
    *,
    database_bytes: int = DATABASE_BYTES["medium"],
    queries: int = 200,
    query_s: float = 1.0,
    optimised: bool = False,
    replicas: int = 2,
) -> Workload:
    """`width` searches of `queries` queries each in one database, and one task that joins the answers.

    Database and queries are in the store before the run [Costa 2014]. `query_s`: seconds that one query
    computes (assumed). Optimised: `replicas` of the database, answers on one node.
    """
    if width < 1 or queries < 1 or database_bytes < 0 or not 0 <= query_s < float("inf"):
        raise BadInput(
            "blast: expected a width and queries of at least 1, bytes and seconds of at least 0"
        )
    database = ("database", database_bytes)
    files = [File(*database, True, Hints(replicas=replicas) if optimised else None)]
    tasks, answers = [], []
    for i in range(width):
        query = (f"queries-{i}", queries * _QUERY_BYTES)
        answer = (f"answers-{i}", queries * _ANSWER_BYTES)
        files.append(File(*query, True))
        hints = Hints(placement="collocate", group="answers") if optimised else None
        files.append(File(answer[0], hints=hints))
        answers.append(answer)
        work = (*full_reads([query, database]), *compute(queries * query_s))
        tasks.append(Task(f"search-{i}", (*work, *full_writes([answer])), "search"))
    result = ("result", sum(size for _, size in answers))
    files.append(File(result[0]))
    tasks.append(Task("join", (*full_reads(answers), *full_writes([result])), "join"))
    return Workload("blast", tuple(files), tuple(tasks))


def montage(
    images: int = IMAGES["medium"], *, optimised: bool = False, io_bps: float = 100e6
) -> Workload:
    """Montage of N images, with the stages, files per task and file sizes of the published table 3.4.

    The table's 955 images have 2,833 overlaps: each image overlaps with the next three. A task's computing
    time follows from its share of input and output at `io_bps` bytes per second (assumed).
    """
    if images < 2 or not 0 < io_bps < float("inf"):
        raise BadInput("montage: at least 2 images and a rate above 0 are expected")
    return _Montage(images, optimised, io_bps).workload()


@dataclass
class _Montage:
    images: int
    optimised: bool
    io_bps: float

    def __post_init__(self) -> None:
        self.files: list[File] = []
        self.tasks: list[Task] = []

    def workload(self) -> Workload:
        n, share = self.images, self.images / _LARGE_IMAGES
        region = self.new_file("region.hdr", 300)
        raw = [self.new_file(f"raw-{i}", _sized(1.7, 2.1, 1.985, i), "local") for i in range(n)]
        catalogue = self.new_file("raw.tbl", 17 * _KB)
        self.task("stageIn", "stageIn", [], [region, catalogue, *raw])
        images = [self.pair("projected", i, _sized(3.3, 4.2, 4.19, i)) for i in range(n)]
        for i in range(n):
            self.task("mProject", f"mProject-{i}", [raw[i], region], images[i])
        table = self.new_file("images.tbl", 17 * _KB)
        heads = [(name, min(size, _HEADER_BYTES)) for pair in images for name, size in pair]
        self.task("mImgTbl", "mImgTbl", heads, [table])
        overlaps = self.new_file("overlaps.tbl", max(1, round(336 * _KB * share)))
        self.task("mOverlaps", "mOverlaps", [table], [overlaps])
        fits = self.fits(images, region)
        planes = self.new_file("planes.tbl", max(1, round(150 * _KB * share)))
        self.task("mConcatFit", "mConcatFit", fits, [planes])
        model = self.new_file("corrections.tbl", max(1, round(20 * _KB * share)))
        self.task("mBgModel", "mBgModel", [table, planes], [model])
        flat = [
            self.pair("corrected", i, _sized(3.3, 4.2, 4.18, i), ("collocate", "add"))
            for i in range(n)
        ]
        for i in range(n):
            self.task("mBackground", f"mBackground-{i}", [*images[i], model], flat[i])
        mosaic = self.new_file("mosaic.fits", round(3 * _GB * share), "local")
        area = self.new_file("mosaic-area.fits", round(2.735 * _GB * share))
        shrunken = self.new_file("shrunken.fits", round(165 * _MB * share), "local")
        self.task(
            "mAdd", "mAdd", [table, *(f for pair in flat for f in pair)], [mosaic, area, shrunken]
        )
        picture = self.new_file("mosaic.jpg", round(47 * _MB * share), "local")
        self.task("mJPEG", "mJPEG", [shrunken], [picture])
        self.task("stageOut", "stageOut", [mosaic, picture], [])
        return Workload("montage", tuple(self.files), tuple(self.tasks))

    def fits(
        self, images: list[list[tuple[str, int]]], region: tuple[str, int]
    ) -> list[tuple[str, int]]:
        """Differences of overlapping images and their fitted planes; returns the planes' files."""
        planes = []
        for k, (i, j) in enumerate(_overlaps(len(images))):
            both = self.pair("difference", k, _sized(0.1, 3.0, 0.461, k))
            reads = [region, *images[i], *images[j]]
            self.task("mDiff", f"mDiff-{k}", reads, both, after=("mOverlaps",))
            # 1,420 files for 2,833 tasks: every second one creates a plane
            plane = [self.new_file(f"plane-{k}", 3500, "collocate", "concat")] if k % 2 == 0 else []
            self.task("mFitPlane", f"mFitPlane-{k}", both, plane)
            planes += plane
        return planes

    def new_file(
        self, name: str, size: int, placement: str | None = None, group: str | None = None
    ) -> tuple[str, int]:
        hints = Hints(placement, group) if self.optimised and placement else None
        self.files.append(File(name, hints=hints))
        return name, size

    def pair(
        self, name: str, i: int, size: int, place: tuple[str, str | None] = ("local", None)
    ) -> list[tuple[str, int]]:
        return [
            self.new_file(f"{name}-{i}", size, *place),
            self.new_file(f"{name}-area-{i}", size, *place),
        ]

    def task(
        self,
        stage: str,
        name: str,
        reads: list[tuple[str, int]],
        writes: list[tuple[str, int]],
        after: tuple[str, ...] = (),
    ) -> None:
        moved = sum(size for _, size in (*reads, *writes))
        share = _IO_SHARE.get(stage)
        seconds = moved / self.io_bps * (1 - share) / share if share else 0.0
        steps: list[Operation] = [*full_reads(reads), *compute(seconds), *full_writes(writes)]
        self.tasks.append(Task(name, tuple(steps), stage, after=after))


def _overlaps(images: int) -> list[tuple[int, int]]:
    """Pairs of images, with the number of overlaps per image from the table."""
    pairs = [(i, i + k) for i in range(images) for k in (1, 2, 3) if i + k < images]
    return pairs[: max(1, round(_LARGE_OVERLAPS / _LARGE_IMAGES * images))]


def _sized(low: float, high: float, mean: float, i: int) -> int:
    """Bytes of the i-th of many files: from `low` to `high` MB, about `mean` MB on average."""
    at = (i * _GOLDEN) % 1.0
    power = (high - low) / (mean - low) - 1
    size: float = (low + (high - low) * at**power) * _MB
    return round(size)
