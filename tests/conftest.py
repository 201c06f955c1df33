"""Fixtures for every test: a real PostgreSQL and Valkey, and the database role that the product itself has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import hypothesis
import pytest
import redis
from xdist.remote import Producer  # type: ignore[import-untyped]  # xdist ships no types
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # xdist ships no types

from tests.product import START_S, STOP_S, Product, fresh_home, remove
from tests.services import Services, prepare

APP_ROLE = "saltroute_app"
_DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback", "live_server", "admin_user"}
PRODUCT_PATHS = ("tests/journeys/", "tests/deploy/test_product.py")
_SERVICES = pytest.StashKey[Services]()
# A busy machine is slow, not wrong: nothing here may fail by the clock.
hypothesis.settings.register_profile("saltroute", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("saltroute")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put the environment in place before pytest-django loads the settings (it does so in a later ``pytest_configure``)."""
    from django.conf import settings

    if settings.configured:
        raise pytest.UsageError("unset DJANGO_SETTINGS_MODULE: the settings must load after the test services are known")
    config.stash[_SERVICES] = prepare()
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings.django"
    assert settings.DATABASES  # loads the settings: pytest-django sets Django up only when they are


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Forget the variable before xdist starts its workers: they would inherit it, and load the settings with our services."""
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what was started, also after an interrupted run."""
    if _SERVICES in config.stash:
        config.stash[_SERVICES].stop()


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Services:
    """The servers of this test process, not started yet; secrets lie in its ``held``."""
    return pytestconfig.stash[_SERVICES]


@pytest.fixture(scope="session")
def postgres_server(services: Services) -> Services:
    """A running PostgreSQL with the product's roles."""
    services.start_postgres()
    return services


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None, postgres_server: Services) -> None:
    """Start PostgreSQL just before pytest-django creates its test database (as the owner role)."""


@pytest.fixture(autouse=True)
def as_app(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a database test every connection of this process acts as the app role, as the product does.

    The owner role made the schema; a superuser, or a role that bypasses row-level security, would make every isolation test
    pass for nothing, so this asserts that we are neither.
    """
    if request.node.get_closest_marker("django_db") is None and not _DATABASE_FIXTURES & set(request.fixturenames):
        yield
        return
    request.getfixturevalue("db")
    from django.db import DatabaseError, connection
    from django.db.backends.signals import connection_created

    def become_app(**kwargs: object) -> None:
        _set_role(APP_ROLE)

    connection_created.connect(become_app)
    try:
        _set_role(APP_ROLE)
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_user, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
            assert cursor.fetchone() == (APP_ROLE, False, False)
        yield
    finally:
        connection_created.disconnect(become_app)
        try:
            _set_role(None)
        except DatabaseError:
            # the test broke its transaction; the rollback that follows takes SET ROLE back with it
            assert connection.in_atomic_block


@pytest.fixture(scope="session", autouse=True)
def static_files_listed_once() -> Iterator[None]:
    """Every test client builds the middleware anew, and WhiteNoise then lists and reads the headers of all static files. They stay as they are while
    tests run, so what was listed under the same settings is taken again."""
    from whitenoise.middleware import WhiteNoiseMiddleware

    listed: dict[tuple[object, ...], dict[str, object]] = {}
    by_listing = WhiteNoiseMiddleware.add_files_from_finders

    def add_files_from_finders(self: Any) -> None:
        asked = (self.static_prefix, self.max_age, self.charset, self.allow_all_origins, self.add_headers_function)
        if asked not in listed:
            by_listing(self)
            listed[asked] = dict(self.files)
        self.files.update(listed[asked])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", add_files_from_finders)
        yield


@pytest.fixture
def as_owner() -> Callable[[], AbstractContextManager[None]]:
    """``with as_owner(): ...`` acts as the role that owns the schema, for what only migrations may do."""

    @contextmanager
    def owner() -> Iterator[None]:
        _set_role(None)
        try:
            yield
        finally:
            _set_role(APP_ROLE)

    return owner


def _set_role(role: str | None) -> None:
    from django.db import connection

    if role is None and connection.connection is None:
        return
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE" if role is None else f"SET ROLE {role}")


@pytest.fixture(scope="session")
def valkey_server(services: Services) -> Services:
    """A running Valkey."""
    services.start_valkey()
    return services


@pytest.fixture
def valkey_url(valkey_server: Services) -> str:
    """URL (all rights) of an empty Valkey database. Other users: ``services.valkey_url("router")``."""
    url = valkey_server.valkey_url()
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def product() -> Iterator[Product]:
    """The whole product, running: one for the session, so a test must leave it as it found it."""
    home = fresh_home()
    try:
        running = Product.start(home)
        yield running
        assert running.stop() == 0, running.output.read_text()
    finally:
        remove(home)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whichever test starts the product the time for it."""
    for item in items:
        if "product" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(START_S + STOP_S))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand out whole files, and everything that uses the product to one worker, so that it starts once.

    pytest-xdist 3.8 has ``xdist_group`` for that, but writes the group into an attribute that pytest 9.2 no longer reads.
    """
    return ByFile(config, log)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # its base is Any for want of types
    """Scheduling units are files; the files of ``PRODUCT_PATHS`` are one unit."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "product" if file.startswith(PRODUCT_PATHS) else file
