"""A pytest plugin for runs in which tests are meant to fail: the first counterexample will do, whatever its size, and is the same each time."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    derandomize=True,
    database=None,
)
