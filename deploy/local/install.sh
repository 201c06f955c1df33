#!/bin/sh
# Make .venv and install a lock file into it, once for each content of that file: sh deploy/local/install.sh run|dev
# The stamp is named after the lock's digest, so a second run costs nothing and a changed lock installs again.
# Package sources are pip's own configuration; nothing here names one.
set -eu

say() { printf 'saltroute: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

# Whether $1 is a Python that this project runs on.
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null 2>&1 || fail "PYTHON=$PYTHON: no such program"
        fits "$PYTHON" || fail "PYTHON=$PYTHON is $("$PYTHON" -V 2>&1), but Saltroute needs Python 3.11, 3.12 or 3.13"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 && fits "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    have=$(python3 -V 2>&1 || true)
    fail "Saltroute needs Python 3.11, 3.12 or 3.13 (found: ${have:-none}); install one, or name it with PYTHON=/path/to/python3.12"
}

make_venv() {
    python=$(find_python) || exit 1
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module (Debian and Ubuntu: apt-get install python3-venv); install it, or name another Python with PYTHON="
    say "making .venv with $("$python" -V 2>&1)"
    rm -rf .venv
    "$python" -m venv .venv || { rm -rf .venv; fail "python -m venv failed (Debian and Ubuntu: apt-get install python3-venv)"; }
}

case "${1:-}" in
    run) lock=requirements.lock ;;
    dev) lock=requirements-dev.lock ;;
    *) fail "usage: sh deploy/local/install.sh run|dev" ;;
esac

if [ -x .venv/bin/python ] && ! fits .venv/bin/python; then
    say ".venv holds another or a missing Python; making it anew"
    rm -rf .venv
fi
[ -x .venv/bin/python ] || make_venv

digest=$(.venv/bin/python -c 'import hashlib, pathlib, sys; print(hashlib.sha256(pathlib.Path(sys.argv[1]).read_bytes()).hexdigest()[:16])' "$lock")
stamp=.venv/.installed-$1-$digest
[ -e "$stamp" ] && exit 0

.venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip --default-pip >/dev/null || fail "pip is missing in .venv; remove .venv and try again"
say "installing $lock into .venv (once; a minute or two)"
.venv/bin/python -m pip install -qq --no-input --disable-pip-version-check --require-hashes -r "$lock" ||
    fail "installing $lock failed; see pip's message above"
rm -f .venv/.installed-"$1"-*
: >"$stamp"
