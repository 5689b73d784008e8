"""What a fit with full beliefs to a long trace takes: time on the wall, CPU time and memory.

    python benchmarks/long_fit.py [ROWS ...]        # 500,000 and 5 million rows x 3 nodes

The peak of memory is that of the process, the trace included.
"""

from __future__ import annotations

import os
import resource
import sys
from time import perf_counter, process_time

from believe import answers

import ttamer as tt

ROWS = (500_000, 5_000_000)
"""The numbers of rows, in increasing order: the peak of memory never falls."""


def main() -> None:
    """Fit to traces of increasing length, and print what each fit took."""
    for rows in sorted(map(int, sys.argv[1:])) or ROWS:
        trace = answers(rows, 3)
        wall, cpu = perf_counter(), process_time()
        tt.fit(trace)
        wall, cpu = perf_counter() - wall, process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        load = os.getloadavg()[0]
        print(
            f"{rows:,} rows: {wall:.1f} s, {cpu:.1f} s of CPU time on {os.cpu_count()} cores "
            f"at load {load:.1f}, {peak:.2f} GB",
            flush=True,
        )


if __name__ == "__main__":
    main()
