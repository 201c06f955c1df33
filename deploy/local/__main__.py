"""``python -m deploy.local up``: the whole product on one machine, in the foreground."""

from __future__ import annotations

import argparse
import sys

from deploy.local.options import Options
from deploy.local.process import LaunchError
from deploy.local.supervisor import Supervisor


def main() -> int:
    """Parse the command line and run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start everything, print how to use it, stop everything on Ctrl-C")
    parser.parse_args()
    try:
        return Supervisor(Options.read()).run()
    except LaunchError as error:
        print(f"saltroute: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
