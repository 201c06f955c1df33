"""The path check finds places of a developer's machine, and lets the CI script name the shared data."""

from __future__ import annotations

import pytest

from deploy.checks.paths import offences

SLASH = "/"  # put together here, so that the check does not find this file


@pytest.mark.parametrize(
    "text",
    [
        f"open('{SLASH}home{SLASH}ada{SLASH}x')",
        f"cd {SLASH}Users{SLASH}Ada",
        f"{SLASH}root{SLASH}.cache",
        f"{SLASH}work{SLASH}main",
        f"see ..{SLASH}shared/facts",
        "https://pypi." + "org".join(("python.", "/simple")),
    ],
)
def test_a_place_of_one_machine_is_found_with_its_line(text: str) -> None:
    (line,) = offences("docs/x.md", f"first\n{text}\n")
    assert line.startswith("docs/x.md:2: names ")


@pytest.mark.parametrize("text", ["/var/tmp", "/usr/lib/postgresql", "homework/x", "the root/leaf ratio", "/tmp/x"])
def test_ordinary_paths_pass(text: str) -> None:
    assert offences("x.py", text) == []


def test_only_the_ci_script_may_name_the_shared_data() -> None:
    text = f"[ -d ..{SLASH}shared ]"
    assert offences(".ci/run", text) == []
    assert offences("Makefile", text) != []
