"""Replicas over the API: addresses, credentials, states."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from namespaces.core import keyring
from routing.models import Replica
from tenants.core.roles import Role
from tests.routing.services.rows import secret
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:9001"
SCHEME = "it begins with neither http:// nor https://"
PORT = "its port is no number up to 65535, or is below 1024 and neither 80 nor 443"
FORMAT = "it holds characters that no base URL has, is too long, or is no URL"
REQUEST = "its path is that of a request; give what comes before /v1, /metrics or /health"
MALFORMED_URLS = [
    ("127.0.0.1:9", SCHEME),
    ("file:///etc/passwd", SCHEME),
    ("gopher://x", SCHEME),
    ("http://user:pw@host/", "it holds a user name; what an engine asks for goes into credential"),
    ("http://192.0.2.1:22", PORT),
    ("http://192.0.2.1:99999", PORT),
    ("http://10.0.0.1:8000/?x=1", "it has a query or a fragment, and a base URL has neither"),
    ("http://10.0.0.1:8000/#x", "it has a query or a fragment, and a base URL has neither"),
    ("http://192.0.2.1/v1/../../admin", "its path holds dot segments or odd characters"),
    ("http://*:8000", "its host is neither a name nor an address"),
    ("http://10.0.0.1.5", "its host is neither a name nor an address"),
    ("http://10.0.0.1:8000/v1/chat", REQUEST),
    ("http://10.0.0.1:8000/team/v1/chat/completions/", REQUEST),
    ("http://192.0.2.1/metrics", REQUEST),
    ("", FORMAT),
    ("x" * 600, FORMAT),
]
BAD_URLS = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://0.0.0.0:8000",
    "http://metadata.google.internal",
    "http://10.0.0.1:8000",
    "http://100.64.0.1",
    "http://[::1]:8000",
    "http://192.0.2.1",
]


@pytest.fixture
def pool(acorn: House) -> Any:
    return acorn.api().post("pools", {"name": "gpu"}).json()


def new(api: Api, **fields: Any) -> Any:
    return api.post("replicas", {"pool": "gpu", "name": "a", "url": URL, **fields})


def test_create_read_change_delete(acorn: House, pool: Any) -> None:
    api = acorn.api(Role.ADMIN)
    made = new(api, url="HTTP://127.0.0.1:9001/v1/", kv_events={"endpoint": "tcp://127.0.0.1:9101"})
    assert made.status_code == 201
    row = made.json()
    assert (row["url"], row["pool"], row["state"], row["has_credential"]) == (URL, "gpu", "active", False)
    assert row["kv_events"] == {"endpoint": "tcp://127.0.0.1:9101"}
    assert api.get("replicas/a").json() == api.get("replicas/gpu/a").json() == api.get(f"replicas/{row['id']}").json()
    changed = api.patch("replicas/a", {"url": "http://127.0.0.1:9002", "kv_events": None}).json()
    assert (changed["url"], changed["kv_events"], changed["config_version"]) == ("http://127.0.0.1:9002", None, row["config_version"] + 1)
    assert [one["id"] for one in api.get("replicas?pool=gpu").json()["results"]] == [row["id"]]
    assert api.get("replicas?pool=other").status_code == 404
    assert api.delete("replicas/a").status_code == 200
    assert api.get(f"replicas/{row['id']}").status_code == 404


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_address_gets_the_one_refusal(acorn: House, pool: Any, url: str) -> None:
    """Whatever is wrong with a well-formed one, the answer is the same and nothing is stored."""
    answer = new(acorn.api(), url=url)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "code": "invalid",
        "message": "This address cannot be used: it is not allowed here, or cannot be verified as yours.",
        "field": "url",
    }
    assert acorn.api().get("replicas").json()["results"] == []


@pytest.mark.parametrize(
    ("path", "kept"),
    [("/team-a/engine", "/team-a/engine"), ("/team-a/v1/", "/team-a"), ("/v1/engines/a", "/v1/engines/a"), ("/metrics/v1", "/metrics")],
)
def test_a_base_path_is_kept(acorn: House, pool: Any, path: str, kept: str) -> None:
    """Of an engine behind a gateway: requests, metrics and health checks go below it."""
    assert new(acorn.api(), url=URL + path).json()["url"] == URL + kept


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(("url", "why"), MALFORMED_URLS)
def test_a_malformed_address_is_told_what_is_wrong_with_its_text(acorn: House, birch: House, settings: Any, url: str, why: str) -> None:
    """By its text alone: the answer is the same whatever ranges are allowed and whatever others have registered."""
    expected = {"code": "invalid", "message": f"This address cannot be used: {why}.", "field": "url"}
    birch.api().post("pools", {"name": "gpu"})
    settings.ALLOWED_RANGES = ("10.0.0.0/8", "192.0.2.0/24")
    for number, taken in enumerate(("http://10.0.0.1:8000", "http://192.0.2.1", "http://10.0.0.5:8000")):
        assert new(birch.api(), name=str(number), url=taken).status_code == 201
    allowed = new(acorn.api(), url=url)
    settings.ALLOWED_RANGES = ()
    refused = new(acorn.api(), url=url)
    assert (allowed.status_code, allowed.json()["error"], refused.content) == (400, expected, allowed.content)


def test_loopback_needs_the_operators_word(acorn: House, pool: Any, settings: Any) -> None:
    """127.0.0.0/8 is in the tests' allow-list; without it the same address is refused."""
    settings.ALLOWED_RANGES = ()
    assert new(acorn.api()).status_code == 400
    settings.ALLOWED_RANGES = ("127.0.0.0/8",)
    assert new(acorn.api()).status_code == 201


def test_another_tenants_address_is_refused_like_a_bad_one(acorn: House, birch: House, pool: Any) -> None:
    """Registering is no oracle for what others have; the tenant's own second pool may hold the address again."""
    assert new(acorn.api()).status_code == 201
    birch.api().post("pools", {"name": "gpu"})
    foreign, bad = new(birch.api()), new(birch.api(), url="http://10.0.0.1:8000")
    assert (foreign.status_code, foreign.content) == (bad.status_code, bad.content)
    acorn.api().post("pools", {"name": "second"})
    assert new(acorn.api(), pool="second").status_code == 201
    assert new(birch.api(), url="http://127.0.0.1:9002").status_code == 201
    moved = birch.api().patch("replicas/a", {"url": URL})
    assert (moved.status_code, moved.content) == (bad.status_code, bad.content)


@pytest.mark.parametrize(
    ("events", "field"),
    [
        ({"endpoint": "tcp://10.0.0.1:5557"}, "kv_events.endpoint"),
        ({"endpoint": "tcp://127.0.0.2:9101"}, "kv_events.endpoint"),
        ({"endpoint": "ipc:///tmp/x"}, "kv_events.endpoint"),
        ({"endpoint": "tcp://*:5557"}, "kv_events.endpoint"),
        ({"endpoint": "tcp://127.0.0.1:9101", "replay": "tcp://169.254.169.254:80"}, "kv_events.replay"),
        ({"endpoint": "tcp://127.0.0.1:9101", "replay": "tcp://127.0.0.1:9101"}, "kv_events.replay"),
        ({"endpoint": "tcp://127.0.0.1:9101", "other": "x"}, "kv_events.other"),
        ({}, "kv_events.endpoint"),
        ("tcp://127.0.0.1:9101", "kv_events"),
    ],
)
def test_event_sockets_are_checked_alike_and_stay_on_the_host(acorn: House, pool: Any, events: Any, field: str) -> None:
    """Their stream holds token ids and salts in clear. Replays have a port of their own."""
    answer = new(acorn.api(), kv_events=events)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert new(acorn.api(), kv_events={"endpoint": "tcp://127.0.0.1:9101", "replay": "tcp://127.0.0.1:9102"}).status_code == 201


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("tcp://*:5557", "* is where an engine listens; routers connect to the replica's own host: tcp://127.0.0.1:5557."),
        ("tcp://0.0.0.0:5557", "0.0.0.0 is where an engine listens; routers connect to the replica's own host: tcp://127.0.0.1:5557."),
        ("tcp://127.0.0.1:99999", f"This address cannot be used: {PORT}."),
        ("tcp://127.0.0.1", "Use tcp://host:port."),
        ("tcp://127.0.0.2:5557", "KV events must come from the replica's own host: tcp://127.0.0.1:5557."),
        ("tcp://10.0.0.1:5557", "KV events must come from the replica's own host: tcp://127.0.0.1:5557."),
        ("tcp://nobody.internal:5557", "KV events must come from the replica's own host: tcp://127.0.0.1:5557."),
    ],
)
def test_an_event_socket_is_told_what_is_wrong_with_it(acorn: House, pool: Any, endpoint: str, message: str) -> None:
    """What vLLM's own configuration holds is named; of another host nothing is told, not even whether it would be allowed."""
    answer = new(acorn.api(), kv_events={"endpoint": endpoint})
    assert (answer.status_code, answer.json()["error"]["field"], answer.json()["error"]["message"]) == (400, "kv_events.endpoint", message)
    assert new(acorn.api(), kv_events={"endpoint": "tcp://127.0.0.1:5557"}).status_code == 201


def test_an_event_socket_of_a_range_that_is_allowed_no_more_is_refused(acorn: House, pool: Any, settings: Any) -> None:
    """Also on the replica's own host, which was registered before."""
    assert new(acorn.api()).status_code == 201
    settings.ALLOWED_RANGES = ()
    answer = acorn.api().patch("replicas/a", {"kv_events": {"endpoint": "tcp://127.0.0.1:5557"}})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "kv_events.endpoint")
    settings.ALLOWED_RANGES = ("127.0.0.0/8",)
    assert acorn.api().patch("replicas/a", {"kv_events": {"endpoint": "tcp://127.0.0.1:5557"}}).status_code == 200


def test_a_role_is_half_of_a_request_where_the_engine_can_hand_over_its_cache(acorn: House, pool: Any) -> None:
    """Whole requests unless told otherwise; another family is refused, whichever of the two fields comes last."""
    api = acorn.api()
    made = new(api, role="prefill")
    assert (made.status_code, made.json()["role"]) == (201, "prefill")
    assert api.get("replicas/a").json()["role"] == "prefill"
    assert api.patch("replicas/a", {"role": "decode"}).json()["role"] == "decode"
    assert api.patch("replicas/a", {"engine": "sglang"}).json()["error"]["field"] == "role"
    assert api.patch("replicas/a", {"role": "both", "engine": "sglang"}).status_code == 200
    assert api.patch("replicas/a", {"role": "prefill"}).json()["error"]["field"] == "role"
    assert api.patch("replicas/a", {"role": "verifier"}).status_code == 400
    assert new(api, name="b", url="http://127.0.0.1:9002").json()["role"] == "both"


def test_a_limit_of_requests_in_flight_is_kept_changed_and_taken_away(acorn: House, pool: Any) -> None:
    api = acorn.api()
    made = new(api, max_concurrency=3)
    assert (made.status_code, made.json()["max_concurrency"]) == (201, 3)
    assert api.get("replicas/a").json()["max_concurrency"] == 3
    assert api.patch("replicas/a", {"max_concurrency": 100_000}).json()["max_concurrency"] == 100_000
    assert acorn.log("replica.update")[-1].after == {"max_concurrency": 100_000}
    assert api.patch("replicas/a", {"name": "b"}).json()["max_concurrency"] == 100_000
    assert api.patch("replicas/b", {"max_concurrency": None}).json()["max_concurrency"] is None
    assert new(api, name="c", url="http://127.0.0.1:9002").json()["max_concurrency"] is None


@pytest.mark.parametrize("limit", [0, -1, 100_001, 2**70, 1.5, "3", True])
def test_a_limit_that_is_none_is_refused_by_name_and_changes_nothing(acorn: House, pool: Any, limit: Any) -> None:
    api = acorn.api()
    refused = new(api, max_concurrency=limit)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "max_concurrency")
    new(api, max_concurrency=1)
    refused = api.patch("replicas/a", {"max_concurrency": limit})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "max_concurrency")
    assert api.get("replicas/a").json()["max_concurrency"] == 1


def test_a_credential_goes_in_and_never_comes_out(acorn: House, pool: Any) -> None:
    """Not in answers, lists, the audit log or the row; only the root's holder opens it, for this replica alone."""
    api = acorn.api()
    made = new(api, credential="be-secret-1234")
    assert made.json()["has_credential"] is True
    replica_id = made.json()["id"]
    shown = [made.content, api.get("replicas").content, api.get("replicas/a").content, api.get("audit-log").content]
    with acorn.scope():
        row = Replica.objects.get(id=replica_id)
        sealed = bytes(row.credential or b"")
    assert all(b"be-secret-1234" not in text for text in [*shown, sealed])
    info = keyring.credential_info(acorn.id, row.id)
    assert keyring.unseal(secret("ROOT_KEY"), sealed, info=info) == b"be-secret-1234"
    with pytest.raises(keyring.KeyringError):
        keyring.unseal(secret("ROOT_KEY"), sealed, info=keyring.credential_info(acorn.id, row.pool_id))
    assert acorn.log("replica.create")[0].after == {
        "name": "a",
        "url": URL,
        "engine": "vllm",
        "role": "both",
        "max_concurrency": None,
        "kv_events": None,
        "has_credential": True,
    }


def test_an_absent_credential_stays_and_null_takes_it_away(acorn: House, pool: Any) -> None:
    """A change of something else leaves it; so does giving the same again, without a version; an empty or masked text is no credential."""
    api = acorn.api()
    new(api, credential="be-secret-1234")
    version = api.patch("replicas/a", {"name": "b"}).json()["config_version"]
    assert api.patch("replicas/b", {"credential": "be-secret-1234"}).json()["config_version"] == version
    with acorn.scope():
        sealed = bytes(Replica.objects.get().credential or b"")
        assert keyring.unseal(secret("ROOT_KEY"), sealed, info=keyring.credential_info(acorn.id, Replica.objects.get().id)) == b"be-secret-1234"
    assert api.patch("replicas/b", {"credential": "bullets \u2022\u2022"}).json()["error"]["field"] == "credential"
    gone = api.patch("replicas/b", {"credential": None}).json()
    assert (gone["has_credential"], gone["config_version"]) == (False, version + 1)


def test_a_credential_does_not_follow_to_another_address(acorn: House, pool: Any) -> None:
    """Else whoever may change addresses could read it at a host of their own."""
    api = acorn.api()
    new(api, credential="be-secret-1234")
    refused = api.patch("replicas/a", {"url": "http://127.0.0.1:9009"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "credential")
    assert api.patch("replicas/a", {"url": "http://127.0.0.1:9009", "credential": "another-1"}).status_code == 200


def test_without_a_seal_key_no_credential_is_kept(acorn: House, pool: Any, settings: Any) -> None:
    settings.SEAL_PUBLIC_KEY = None
    answer = new(acorn.api(), credential="be-secret-1234")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert acorn.api().get("replicas").json()["results"] == []


def test_drain_pause_resume(acorn: House, pool: Any) -> None:
    """An operator's verbs; repeating one changes nothing and raises no version."""
    new(acorn.api())
    api = acorn.api(Role.OPERATOR)
    drained = api.post("replicas/a/drain", {"reason": "upgrade"}).json()
    assert drained["state"] == "draining"
    assert api.post("replicas/a/drain").json()["config_version"] == drained["config_version"]
    assert api.post("replicas/a/pause/").json()["state"] == "paused"
    assert api.post("replicas/gpu/a/resume").json()["state"] == "active"
    assert acorn.log("replica.drain")[0].reason == "upgrade"
    assert acorn.api(Role.VIEWER).post("replicas/a/drain").status_code == 403
    assert acorn.api(Role.VIEWER).get("replicas/a/drain").status_code == 405


def test_names_and_addresses_are_taken_once_per_pool(acorn: House, pool: Any) -> None:
    api = acorn.api()
    new(api)
    taken = new(api, url="http://127.0.0.1:9002")
    assert (taken.status_code, taken.json()["error"]["field"]) == (409, "name")
    twin = new(api, name="b")
    assert (twin.status_code, twin.json()["error"]["field"]) == (409, "url")


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House, pool: Any) -> None:
    replica = new(acorn.api()).json()
    api, answers = birch.api(), set()
    for reference in (replica["id"], ABSENT, "a", "gpu/a"):
        for method, suffix in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/drain"), ("POST", "/resume")):
            answer = api.call(method, f"replicas/{reference}{suffix}", {} if method != "GET" else None)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    assert acorn.api().get("replicas/a").json()["state"] == "active"


def test_a_pool_that_is_not_there_is_named_by_its_field(acorn: House, birch: House, pool: Any) -> None:
    """Absent and another's give the same bytes; so does a test of a replica, whose endpoint is named too."""
    api = birch.api()
    for path, more in (("replicas", {}), ("replica-checks", {"engine": "vllm"})):
        answers = [api.post(path, {"pool": one, "name": "x", "url": "http://127.0.0.1:9007", **more}) for one in (pool["id"], ABSENT, "gpu")]
        assert {(answer.status_code, answer.content) for answer in answers} == {(404, answers[0].content)}
        assert answers[0].json()["error"] == {"code": "not_found", "message": "Not found.", "field": "pool"}
        assert acorn.api().post(path, {"pool": "gpu", "name": "x", "url": "http://127.0.0.1:9007", **more}).status_code == 201
    endpoint = acorn.api().post("replica-checks", {"pool": "gpu", "name": "x", "url": "http://127.0.0.1:9007", "endpoint": "nope"})
    assert (endpoint.status_code, endpoint.json()["error"]["field"]) == (404, "endpoint")
    assert acorn.api().get("replicas?pool=nope").json()["error"]["field"] == "pool"
    assert acorn.api().get("replicas/nope").json()["error"]["field"] is None


@pytest.mark.parametrize(("field", "words"), [("engine", "llamacpp, sglang, trtllm, vllm"), ("role", "both, decode, prefill")])
def test_an_unknown_word_is_told_the_known_ones(acorn: House, pool: Any, field: str, words: str) -> None:
    refused = new(acorn.api(), **{field: "vLLM"})
    assert (refused.status_code, refused.json()["error"]["field"], refused.json()["error"]["message"]) == (400, field, f"Use one of: {words}.")


def test_whether_routers_reach_it_and_since_when(acorn: House, pool: Any, valkey_url: str) -> None:
    """One that nobody reaches, one that some reach, one that all reach, and one that nobody has asked; in lists, alone and after a change."""
    api = acorn.api(Role.ADMIN)
    urls = [f"http://127.0.0.1:900{number}" for number in range(1, 5)]
    for name, url in zip("abcd", urls, strict=True):
        new(api, name=name, url=url)
    away = {"condition": "failing (active)", "away_since": 1_700_000_100.0}
    reports = {
        "r1": {urls[0]: away, urls[1]: away, urls[2]: {"condition": "ok"}, urls[3]: {"condition": "unknown"}},
        "r2": {urls[0]: {"condition": "failing (passive)", "away_since": 1_700_000_000.0}, urls[1]: {"condition": "ok", "away_since": 1.0}},
        "r3": {urls[0]: {"condition": "unknown"}, urls[1]: "returning", urls[2]: {**away, "condition": None}},
        "r4": {urls[0]: {**away, "away_since": 1e300}, "http://127.0.0.1:9999": away},
    }
    with redis.Redis.from_url(valkey_url) as client:
        for name, replicas in reports.items():
            client.set(f"saltroute:router:{name}", json.dumps({"versions": {}, "replicas": replicas}), ex=60)
    listed = {one["name"]: one["reach"] for one in api.get("replicas").json()["results"]}
    assert listed == {
        "a": {
            "unreachable": True,
            "away_since": "2023-11-14T22:13:20Z",
            "why": "does not answer health checks; requests to it fail",
            "routers_away": 3,
            "routers_asked": 3,
        },
        "b": {
            "unreachable": False,
            "away_since": "2023-11-14T22:15:00Z",
            "why": "does not answer health checks",
            "routers_away": 1,
            "routers_asked": 3,
        },
        "c": {"unreachable": False, "away_since": None, "why": "", "routers_away": 0, "routers_asked": 1},
        "d": None,
    }
    assert api.get("replicas/a").json()["reach"] == api.post("replicas/a/drain").json()["reach"] == listed["a"]


def test_without_valkey_a_replica_is_answered_and_its_reach_is_unknown(acorn: House, pool: Any, settings: Any) -> None:
    new(acorn.api())
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    answer = acorn.api().get("replicas/a")
    assert (answer.status_code, answer.json()["reach"]) == (200, None)


def _tell(valkey_url: str, **reports: dict[str, Any]) -> None:
    """Put reports of routers where routers put them."""
    with redis.Redis.from_url(valkey_url) as client:
        for name, replicas in reports.items():
            client.set(f"saltroute:router:{name}", json.dumps({"versions": {}, "replicas": replicas}), ex=60)


EXACT = {"condition": "ok", "residency": "exact", "residency_reason": "ok", "residency_since": 1_699_999_400.0, "event_blocks": 1200}


def test_on_what_its_residency_rests_why_and_since_when(acorn: House, pool: Any, valkey_url: str) -> None:
    """As the least sure router says, in lists, alone and after a change. One that nobody reaches, and one that no router knows, have none."""
    api = acorn.api(Role.ADMIN)
    urls = [f"http://127.0.0.1:900{number}" for number in range(1, 6)]
    for name, url in zip("abcde", urls, strict=True):
        new(api, name=name, url=url)
    warming = {**EXACT, "residency": "warming", "residency_reason": "late_join", "residency_since": 1_699_999_900.0, "event_blocks": 7}
    history = {"condition": "ok", "residency": "history", "residency_reason": "no_events", "residency_since": None, "event_blocks": 0}
    away = {**EXACT, "condition": "failing (active)"}
    _tell(valkey_url, r1=dict(zip(urls, (EXACT, EXACT, history, away), strict=False)), r2={urls[1]: warming, urls[2]: history})
    listed = {one["name"]: one["residency"] for one in api.get("replicas").json()["results"]}
    assert listed == {
        "a": {
            "state": "exact",
            "reasons": ["ok"],
            "why": "nothing against it",
            "since": "2023-11-14T22:03:20Z",
            "event_blocks": 1200,
            "routers": 1,
        },
        "b": {
            "state": "warming",
            "reasons": ["late_join"],
            "why": "joined late",
            "since": "2023-11-14T22:11:40Z",
            "event_blocks": 1200,
            "routers": 2,
        },
        "c": {"state": "history", "reasons": ["no_events"], "why": "no events", "since": None, "event_blocks": 0, "routers": 2},
        "d": None,
        "e": None,
    }
    assert api.get("replicas/b").json()["residency"] == api.post("replicas/b/drain").json()["residency"] == listed["b"]


def test_every_role_reads_the_residency_of_its_own_replicas_and_nobody_that_of_others(
    acorn: House, birch: House, platform: Api, pool: Any, valkey_url: str
) -> None:
    """A tenant that a pool of the platform's is granted to reads nothing of its replicas: neither their state nor its age. The platform does."""
    new(acorn.api())
    shared = platform.post("pools", {"name": "shared", "isolation": "declared"}).json()
    theirs = platform.post("replicas", {"pool": "shared", "name": "s", "url": "http://127.0.0.1:9400"}).json()
    assert platform.post(f"pools/{shared['id']}/grants", {"tenant": "acorn"}).status_code == 201
    warming = {**EXACT, "residency": "warming", "residency_reason": "restart"}
    _tell(valkey_url, r1={URL: EXACT, "http://127.0.0.1:9400": warming})
    for role in Role:
        assert acorn.api(role).get("replicas/a").json()["residency"]["state"] == "exact"
        assert [one["name"] for one in acorn.api(role).get("replicas").json()["results"]] == ["a"]
    assert platform.get("replicas/s").json()["residency"]["state"] == "warming"
    absent = acorn.api().get(f"replicas/{ABSENT}")
    for path in (f"replicas/{theirs['id']}", "replicas/s", "replicas/shared/s"):
        answer = acorn.api().get(path)
        assert (answer.status_code, answer.content) == (404, absent.content)
    assert birch.api().get("replicas/a").content == absent.content
    said = [acorn.api().get(path).content for path in ("pools", f"pools/{shared['id']}", "routers", "status")]
    assert b"shared" in said[0]
    assert not [text for text in said if b"warming" in text or b"restart" in text]


def test_without_valkey_its_residency_is_unknown_and_malformed_reports_say_nothing(acorn: House, pool: Any, settings: Any, valkey_url: str) -> None:
    new(acorn.api())
    _tell(valkey_url, r1={URL: {**EXACT, "residency": 7}}, r2={URL: "ok"}, r3={URL: {**EXACT, "residency_since": 1e300}})
    shown = acorn.api().get("replicas/a").json()["residency"]
    assert (shown["state"], shown["since"], shown["routers"]) == ("exact", None, 1)
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    answer = acorn.api().get("replicas/a")
    assert (answer.status_code, answer.json()["residency"]) == (200, None)
