"""A long trace out of a short one, and what an analysis of it takes.

    python -m tests.bench.long_trace FILE --requests 1000000 --out long.jsonl.gz     writes it
    python -m tests.bench.long_trace FILE --requests 1000000                         analyses it, line by line, and prints memory and time

The short trace is repeated, each time later by its span and with ids of its own but for the blocks that at least a tenth of its requests begin with:
those stay, as a common instruction does. So the share that could be reused stays about that of the short trace while the blocks grow with it.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from routing.traces.analysis import LIMIT_BLOCKS, Analysis, ceiling
from routing.traces.export import mooncake_lines
from routing.traces.formats import read
from routing.traces.request import Trace, TraceRequest

COMMON_SHARE = 0.1
TOLD_EVERY = 100_000


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def repeated(short: list[TraceRequest], count: int) -> Iterator[TraceRequest]:
    """``count`` requests out of a short trace."""
    uses = Counter(block for one in short for block in set(one.blocks))
    common = {block for block, times in uses.items() if times >= COMMON_SHARE * len(short)}
    step = 1 + max(max(one.blocks, default=0) for one in short)
    span_s = short[-1].at_s + 1.0
    for number in range(count):
        go, place = divmod(number, len(short))
        one = short[place]
        blocks = tuple([block if block in common else block + go * step for block in one.blocks])
        session = f"{one.session}-{go}" if one.session else ""
        yield replace(one, at_s=one.at_s + go * span_s, blocks=blocks, session=session)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--limit", type=int, default=LIMIT_BLOCKS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = read(options.file)
    short = list(source.requests)
    long = repeated(short, options.requests)
    if options.out is not None:
        with gzip.open(options.out, "wb", compresslevel=1) as file:
            for line in mooncake_lines(Trace("long", source.block_tokens, source.timed, long)):
                file.write(line)
        return
    _say(f"{len(short):,} requests with a ceiling of {ceiling(short, source.block_tokens):.2%}, repeated to {options.requests:,}")
    analysis, began_s = Analysis(source.block_tokens, timed=source.timed, limit=options.limit), time.perf_counter()
    for number, one in enumerate(long, start=1):
        analysis.add(one)
        if number % TOLD_EVERY == 0:
            memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            _say(f"  {number:>9,} requests  {time.perf_counter() - began_s:6.1f} s  {memory_bytes / 1e6:5.0f} MB")
    report = analysis.report()
    _say(f"ceiling {report.ceiling:.2%}, looked at {report.sample:.3%} of about {report.distinct_tokens // source.block_tokens:,} distinct blocks")


if __name__ == "__main__":
    main()
