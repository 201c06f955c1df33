"""``python -m routing.dataplane``: one router process."""

from __future__ import annotations

import asyncio
import logging
import sys

import uvloop

from routing.dataplane.app import run
from routing.dataplane.config import from_environment
from routing.dataplane.connections import allow_many_files
from settings.env import EnvError


def main() -> int:
    """Read the environment and run; 2 for a setting that is missing or malformed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        config, secrets = from_environment()
    except EnvError as error:
        sys.stderr.write(f"router: {error}\n")
        return 2
    allow_many_files()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(config, secrets))
    except OSError as error:
        sys.stderr.write(f"router: cannot listen: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
