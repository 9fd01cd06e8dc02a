"""Nucleotide BLAST over the nodes of a shared store: `blast.py STORE NODE SPLIT MEBIBASES QUERIES`.

The first node creates the database in the store from a seed, with queries of which one in four is a mutated
piece of it. Then the nodes that have a part of the queries search it, each reading the complete database
through its own mount. The first one prints the duration and the number of queries with a match.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

LONG, MUTATED = 400, 0.02


def main() -> None:
    """Program of every node."""
    store, node = Path(sys.argv[1]), sys.argv[2]
    split, mebibases, queries = map(int, sys.argv[3:6])
    number = int(node.rpartition("-")[2])
    if number == 0:
        make(store, mebibases, queries, split)
        (store / "ready").write_text("")
    wait(store / "ready")
    begin = time.monotonic()
    if number < split:
        argv = ["blastn", "-db", store / "db", "-query", store / f"queries.{number}"]
        argv += ["-outfmt", "6 qseqid", "-evalue", "1e-20", "-max_target_seqs", "1"]
        result = subprocess.run(argv, check=True, capture_output=True, text=True)
        matched = sorted(set(result.stdout.split()))
        write(store / f"hits.{number}", "".join(f"{name}\n" for name in matched))
    if number == 0:
        hits = 0
        for part in range(split):
            wait(store / f"hits.{part}")
            hits += len((store / f"hits.{part}").read_text().split())
        print(f"searched in {time.monotonic() - begin:.3f} s, hits {hits}")


def make(store: Path, mebibases: int, queries: int, split: int) -> None:
    """Create the database by makeblastdb, and the queries in N parts."""
    rng = random.Random(1)
    bases = rng.randbytes(mebibases << 20).translate(b"ACGT" * 64).decode()
    piece_bases = 1 << 20
    pieces = (bases[i : i + piece_bases] for i in range(0, len(bases), piece_bases))
    text = "".join(f">s{i}\n{piece}\n" for i, piece in enumerate(pieces))
    subprocess.run(
        ["makeblastdb", "-dbtype", "nucl", "-title", "made", "-out", store / "db"],
        input=text.encode(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    parts: list[list[str]] = [[] for _ in range(split)]
    for i in range(queries):
        if i % 4 == 0:
            at = rng.randrange(len(bases) - LONG)
            query = [
                rng.choice("ACGT") if rng.random() < MUTATED else c for c in bases[at : at + LONG]
            ]
        else:
            query = rng.choices("ACGT", k=LONG)
        parts[i % split].append(f">q{i}\n{''.join(query)}\n")
    for i, part in enumerate(parts):
        write(store / f"queries.{i}", "".join(part))
    for path in store.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write(path: Path, text: str) -> None:
    """Write a file that the other nodes only see when it is complete."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(text)
    partial.rename(path)


def wait(path: Path) -> None:
    """Wait for a file."""
    while not path.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    main()
