"""Append records of 4 KiB to a file, each synchronised, and continue after an error.

Usage: commit.py FILE SECONDS. Print the numbers of commits and errors and the longest commit, ms.
"""

import os
import sys
import time

path, seconds = sys.argv[1], float(sys.argv[2])
commits = errors = 0
longest = 0.0
file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
end = time.monotonic() + seconds
while (start := time.monotonic()) < end:
    try:
        os.pwrite(file, os.urandom(4096), 4096 * commits)
        os.fsync(file)
        commits += 1
    except OSError:
        errors += 1
        time.sleep(0.01)
    longest = max(longest, time.monotonic() - start)
print(f"commits {commits} errors {errors} longest_ms {1000 * longest:.1f}")
