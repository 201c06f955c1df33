"""No tracked file may name a place on a developer's machine, or a package index: both break on every other machine.

``python -m deploy.checks.paths`` prints every offender and exits 1 when there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Home directories, scratch checkouts, the shared papers (which only .ci/run may name, to pass their place on), index hosts.
# Written with character classes so that this file does not find itself.
_FORBIDDEN = re.compile(
    r"/hom[e]/[a-z0-9_]|/Users[/][A-Za-z]|/roo[t]/|/wor[k]/|C:[\\]Users|/opt/(?:pyp[i]|wheel[s])|\.\./share[d]\b|(?:pypi|files)\.(?:python|pythonhosted)\.or[g]"
)
_MAY_NAME_SHARED = ".ci/run"
_BINARY_SUFFIXES = {".png", ".ico", ".gz", ".woff2"}


def offences(name: str, text: str) -> list[str]:
    """One line for each forbidden name in a file's text."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        for match in _FORBIDDEN.finditer(line):
            if name == _MAY_NAME_SHARED and match.group().startswith(".."):
                continue
            found.append(f"{name}:{number}: names {match.group()}")
    return found


def main(root: Path) -> int:
    """Check every file that git tracks; returns the exit code."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name and Path(name).suffix not in _BINARY_SUFFIXES and (root / name).is_file()]
    found = [line for name in names for line in offences(name, (root / name).read_text(errors="replace"))]
    print("\n".join(found) if found else "paths: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent.parent))
