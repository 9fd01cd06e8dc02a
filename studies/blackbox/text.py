"""text.py FILE BYTES [SEED]: lines of words whose frequencies fall with rank (Zipf)."""

from __future__ import annotations

import random
import sys

WORDS, LINE_WORDS, BLOCK_LINES = 20_000, 10, 100_000


def block(seed: int) -> bytes:
    """Lines of words of 2 to 10 letters, with a newline at the end."""
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(WORDS)]
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    sampled = rng.choices(vocabulary, weights, k=LINE_WORDS * BLOCK_LINES)
    lines = (" ".join(sampled[i : i + LINE_WORDS]) for i in range(0, len(sampled), LINE_WORDS))
    return ("\n".join(lines) + "\n").encode()


def main() -> None:
    """The command line."""
    path, size, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 1
    content, remaining = block(seed), size
    with open(path, "wb") as file:
        while remaining > 0:
            remaining -= file.write(content[:remaining])


if __name__ == "__main__":
    main()
