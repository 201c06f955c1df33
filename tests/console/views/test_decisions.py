"""Decisions in the console: the list and its filters, one decision and its answer to "why"."""

from __future__ import annotations

import html
import re
import uuid
from datetime import timedelta
from typing import Any, get_args
from urllib.parse import parse_qs

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.templatetags.console_text import UNKNOWN
from routing.core import glossary
from routing.core.cause import PARTS
from routing.core.record import AttemptRecord, CauseRecord, Outcome
from routing.core.scorers import REGISTER
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db
EVIL = "<img src=x onerror=alert(1)>"


def _listed(page: str) -> list[str]:
    return re.findall(r"/t/acorn/decisions/([0-9a-f-]{36})", page)


def test_the_list_is_filtered(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    usual = rows.record(made, started_at=rows.ago(seconds=10))
    slow = rows.record(made, started_at=rows.ago(seconds=20), ttft_s=3.2, endpoint_id=uuid.uuid4())
    missed = rows.record(made, started_at=rows.ago(seconds=30), cached_tokens=0, key_id=uuid.uuid4())
    failed = rows.record(made, started_at=rows.ago(seconds=40), outcome="upstream_error", status=502, ttft_s=None)
    rows.store(as_owner, made, usual, slow, missed, failed)
    everything = [str(one.id) for one in (usual, slow, missed, failed)]

    def listed(query: str) -> list[str]:
        return _listed(town.owner.get(f"/t/acorn/decisions?{query}").content.decode())

    assert listed("") == everything
    assert listed("slower=1000") == [str(slow.id)]
    assert listed("missed=1") == [str(missed.id)]
    assert listed("outcome=upstream_error") == [str(failed.id)]
    assert listed(f"key={made.key_id}") == [str(one.id) for one in (usual, slow, failed)]
    assert listed(f"endpoint={made.endpoint_id}") == [str(one.id) for one in (usual, missed, failed)]
    assert listed("outcome=ok&slower=99999") == []
    # malformed values narrow nothing
    assert listed("slower=x&outcome=%3Cimg%3E&endpoint=1&key=%00&before=never~nothing") == everything


def _cells(page: str, column: str) -> list[str]:
    """A column of the list as people read it."""
    cells = re.findall(rf'data-label="{column}">(.*?)</td>', page, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", one)).split()) for one in cells]


def test_the_list_says_which_replica_and_with_which_code_a_request_failed(town: Town, as_owner: AsOwner) -> None:
    """The code is the one that the client got. A replica of the platform's is not named, and one that another tenant named alike is not linked."""
    made = town.acorn
    refused = {"outcome": "refused", "status": 503, "error_code": "isolation_unavailable", "replica_id": None, "replica_name": None}
    elsewhere = {"replica_id": str(town.birch.replica_ids[0]), "replica_name": "secret-name"}
    failed = {"outcome": "upstream_error", "status": 502, "error_code": "upstream_failed", "replica_id": str(made.replica_ids[1])}
    told: tuple[dict[str, Any], ...] = ({}, refused, elsewhere, failed)
    rows.store(as_owner, made, *(rows.record(made, started_at=rows.ago(seconds=10 * number), **one) for number, one in enumerate(told, 1)))
    page = town.viewer.get("/t/acorn/decisions").content.decode()
    assert _cells(page, "Replica") == ["a", UNKNOWN, "not named", "b"]
    assert _cells(page, "Outcome") == ["ok 200", "refused 503 isolation_unavailable", "ok 200", "replica failed 502 upstream_failed"]
    listed = page.split("<tbody>")[1]
    assert re.findall(r"/t/acorn/replicas/([0-9a-f-]{36})", listed) == [str(one) for one in made.replica_ids]
    assert "secret-name" not in page


def _utc(**span: float) -> str:
    """A moment before now as a form sends it, in UTC."""
    return (timezone.now() - timedelta(**span)).strftime("%Y-%m-%dT%H:%M:%S")


def test_the_list_is_narrowed_by_time_beside_the_other_filters(town: Town, as_owner: AsOwner) -> None:
    made = town.acorn
    ages = {"new": 5, "within the hour": 40, "today": 600, "older": 3000}  # minutes
    ids = {name: uuid.uuid4() for name in ages}
    rows.store(as_owner, made, *(rows.record(made, id=ids[name], started_at=rows.ago(minutes=age)) for name, age in ages.items()))
    failed = rows.record(made, started_at=rows.ago(minutes=41), outcome="upstream_error", status=502, ttft_s=None)
    rows.store(as_owner, made, failed)
    rows.store(as_owner, town.birch, rows.record(town.birch, started_at=rows.ago(minutes=5)))
    names = {str(value): name for name, value in ids.items()} | {str(failed.id): "failed"}

    def listed(query: str) -> list[str]:
        response = town.owner.get(f"/t/acorn/decisions?{query}")
        assert response.status_code == 200
        return [names[one] for one in _listed(response.content.decode())]

    assert listed("") == listed("within=") == listed("within=between") == ["new", "within the hour", "failed", "today", "older"]
    assert listed("within=15m") == ["new"]
    assert listed("within=1h") == ["new", "within the hour", "failed"]
    assert listed("within=1h&outcome=upstream_error") == ["failed"]
    assert listed("within=24h") == ["new", "within the hour", "failed", "today"]
    assert listed(f"within=between&from={_utc(hours=11)}&to={_utc(minutes=30)}") == ["within the hour", "failed", "today"]
    assert listed(f"from={_utc(hours=1)}") == ["new", "within the hour", "failed"]
    assert listed(f"to={_utc(hours=1)}%2B00:00") == ["today", "older"]
    assert listed(f"to={_utc(hours=9)}&namespace=ns-1f2e3d") == ["today"]  # of a namespace the last day of the range is looked through
    assert listed(f"to={_utc(hours=40)}&namespace=ns-1f2e3d") == ["older"]
    page = town.owner.get(f"/t/acorn/decisions?within=between&from={_utc(hours=11)}").content.decode()
    assert '<option value="between" selected>' in page
    assert f'value="{_utc(hours=11)[:14]}' in page


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("from=yesterday", {"from": "This is no time."}),
        ("within=between&from=2026-13-01T00:00&to=%00", {"from": "This is no time.", "to": "This is no time."}),
        ("from=2026-01-02T00:00&to=2026-01-02T00:00", {"to": "The end must be after the begin."}),
        ("from=0001-01-01T00:00%2B05:00", {"from": "This is no time."}),
        ("within=15m&to=2026-01-02T00:00", {"to": "This range ends now."}),
        ("within=%3Cimg%3E", {"within": "Choose one of: 15m, 1h, 24h, between."}),
    ],
)
def test_a_range_that_cannot_be_read_is_told_at_its_field(town: Town, as_owner: AsOwner, query: str, wrong: dict[str, str]) -> None:
    """And nothing is listed that somebody could take for the range."""
    rows.store(as_owner, town.acorn, rows.record(town.acorn))
    response = town.owner.get(f"/t/acorn/decisions?{query}")
    page = response.content.decode()
    assert response.status_code == 400
    told = dict(re.findall(r'<span class="wrong" id="(\w+)-wrong">([^<]*)</span>', page))
    assert set(told) == set(wrong)
    assert all(told[name].startswith(said) for name, said in wrong.items())
    assert len(re.findall(r'aria-invalid="true"', page)) == len(wrong)
    assert _listed(page) == []
    assert "<img" not in page


def test_pages_of_a_range_keep_it(town: Town, as_owner: AsOwner) -> None:
    inside = [rows.record(town.acorn, started_at=rows.ago(minutes=20, seconds=number)) for number in range(60)]
    rows.store(as_owner, town.acorn, *inside, rows.record(town.acorn), rows.record(town.acorn, started_at=rows.ago(hours=3)))
    url, seen = f"/t/acorn/decisions?from={_utc(hours=2)}&to={_utc(minutes=10)}&slower=1", []
    for size in (50, 10):
        page = town.owner.get(url).content.decode()
        found = _listed(page)
        assert len(found) == size
        seen += found
        older = re.search(r'href="(\?[^"]+)">Older', page)
        url = "/t/acorn/decisions" + older[1].replace("&amp;", "&") if older else ""
    assert url == ""
    assert set(seen) == {str(one.id) for one in inside}
    newest = re.search(r'href="\?([^"]+)">Newest', page)
    assert newest
    assert set(parse_qs(html.unescape(newest[1]))) == {"from", "to", "slower"}


def test_pages_follow_each_other_without_gap_or_repeat(town: Town, as_owner: AsOwner) -> None:
    at = rows.ago(minutes=5)
    records = [rows.record(town.acorn, started_at=at) for _ in range(70)] + [rows.record(town.acorn, started_at=at - n) for n in range(1, 51)]
    rows.store(as_owner, town.acorn, *records)
    seen: list[str] = []
    url = "/t/acorn/decisions?outcome=ok"
    for size in (50, 50, 20):
        page = town.owner.get(url).content.decode()
        found = _listed(page)
        assert len(found) == size
        seen += found
        older = re.search(r'href="(\?[^"]+)">Older', page)
        url = "/t/acorn/decisions" + older[1].replace("&amp;", "&") if older else ""
    assert url == ""
    assert len(set(seen)) == 120


def test_many_rows_cost_no_more_queries(town: Town, as_owner: AsOwner) -> None:
    rows.store(as_owner, town.acorn, rows.record(town.acorn))
    town.owner.get("/t/acorn/decisions")  # the session is noted once
    with CaptureQueriesContext(connection) as few:
        town.owner.get("/t/acorn/decisions")
    rows.store(as_owner, town.acorn, *(rows.record(town.acorn) for _ in range(45)))
    with CaptureQueriesContext(connection) as many:
        assert len(_listed(town.owner.get("/t/acorn/decisions").content.decode())) == 46
    assert len(many) == len(few)
    read = [query["sql"].partition(" FROM ")[0] for query in many.captured_queries]
    assert not any(re.search(r'"record"(?! ->> )', one) for one in read), "columns alone are read, and one word of the record"


def test_a_decision_is_opened_by_its_id(town: Town) -> None:
    wanted = uuid.uuid4()
    assert town.owner.get(f"/t/acorn/decisions?id={wanted}").headers["Location"] == f"/t/acorn/decisions/{wanted}"
    assert "That is not the id of a decision" in town.owner.get("/t/acorn/decisions?id=abc").content.decode()


def test_one_page_says_why_with_every_term_in_seconds(town: Town, as_owner: AsOwner) -> None:
    decision = rows.record(town.acorn)
    rows.store(as_owner, town.acorn, decision)
    page = town.owner.get(f"/t/acorn/decisions/{decision.id}").content.decode()
    answer = page.split('id="answer">')[1].split("</p>")[0]
    assert re.sub(r"<[^>]+>", "", answer).startswith(
        "Fast enough: the first token came after 120 ms, and the target is 2.00 s. Replica a held 1,008 of 1,200 prompt tokens (84 %) in its cache"
    )
    anchors = re.findall(r'href="/t/acorn/terms#(word-[a-z-]+)"', answer)
    assert anchors == ["word-first-token", "word-target", "word-replica", "word-token", "word-cache"]
    assert [one for one in anchors if f'id="{one}"' not in town.owner.get("/t/acorn/terms").content.decode()] == []
    # both candidates, their terms, matched and realised tokens
    for text in ("400 ms", "310 ms", "100 ms", "1,024", "1,008", ">price<", "pressure"):
        assert text in page
    bars = re.findall(r'<rect class="f\d" x="[\d.]+" y="[\d.]+" width="([\d.]+)"', page)
    assert len(bars) == 7
    assert '<td data-label="Answer">200</td>' in page
    assert 'style="' not in page


def test_a_short_record_says_that_it_is_short(town: Town, as_owner: AsOwner) -> None:
    decision = rows.record(town.acorn, candidates=())
    rows.store(as_owner, town.acorn, decision)
    page = town.owner.get(f"/t/acorn/decisions/{decision.id}").content.decode()
    assert "This record was kept short" in page
    assert "<rect" not in page


def test_it_says_why_the_prompts_tokens_were_estimated(town: Town, as_owner: AsOwner) -> None:
    vague, exact = rows.record(town.acorn, inexact="special_tokens"), rows.record(town.acorn)
    rows.store(as_owner, town.acorn, vague, exact)
    pages = [town.owner.get(f"/t/acorn/decisions/{one.id}").content.decode() for one in (vague, exact)]
    assert ["special_tokens (special tokens unknown)" in page for page in pages] == [True, False]
    figures = (
        "<dd>≈ 1,024</dd><dd>expected cached ≈ 980</dd>",
        '"Matched">≈ 1,024<',
        '"Expected cached">≈ 980<',
        '"To compute">≈ 1,180<',
        "≈ is an estimate from",
    )
    assert [[words in page for words in figures] for page in pages] == [[True] * len(figures), [False] * len(figures)]
    assert ["≈ 0" in page for page in pages] == [False, False]


def test_where_nothing_was_sent_nothing_is_said_to_be_measured(town: Town, as_owner: AsOwner) -> None:
    unmeasured = dict.fromkeys(["ttft_s", "expected_ttft_s", "prompt_tokens", "cached_tokens", "completion_tokens"])
    refused = rows.record(
        town.acorn, outcome="refused", status=404, stream=False, attempts=(), candidates=(), estimated_prompt_tokens=0, **unmeasured
    )
    rows.store(as_owner, town.acorn, refused)
    page = town.owner.get(f"/t/acorn/decisions/{refused.id}").content.decode()
    assert "Nothing was sent to a replica, so there is nothing to measure; decided in 0.4 ms." in page
    assert "<dd>–, nothing was sent</dd>" in page  # noqa: RUF001 - the dash that the console prints
    for said in ("not streamed", "the engine did not say", "estimated 0", "<dd>yes</dd>"):
        assert said not in page


def test_what_requests_brought_is_text(town: Town, as_owner: AsOwner) -> None:
    """A model name with markup, and the same in every other text a request or a replica can choose."""
    made = town.acorn
    candidates = (
        rows.candidate(made.replica_ids[0], EVIL, terms={"wait": 0.1, EVIL: 0.2}, refusal=None),
        rows.candidate(uuid.uuid4(), "b", refusal=EVIL),
    )
    evil = rows.record(
        made,
        model=EVIL,
        endpoint=EVIL,
        request_id=EVIL,
        error_code=EVIL,
        replica_name=EVIL,
        namespace=EVIL,
        route=EVIL,
        candidates=candidates,
        attempts=(AttemptRecord(replica_id=EVIL, status=500, error=EVIL),),
    )
    rows.store(as_owner, made, evil)
    for path in ("", f"/{evil.id}"):
        page = town.owner.get(f"/t/acorn/decisions{path}").content.decode()
        assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_replicas_of_the_platform_keep_their_names_and_load(town: Town, as_owner: AsOwner) -> None:
    """Of a shared replica the tenant reads its own terms and one rounded wait; the operator reads everything."""
    shared, other = uuid.uuid4(), uuid.uuid4()
    decision = rows.record(
        town.acorn,
        replica_id=str(shared),
        replica_name="h100-secret",
        candidates=(
            rows.candidate(shared, "h100-secret", terms={"wait": 0.3456, "prefill": 0.09}, in_flight=77, queued_tokens=31337.0),
            rows.candidate(other, "h200-secret", terms={"wait": 0.9876, "prefill": 0.2, "pressure": 0.654}, in_flight=78),
        ),
        attempts=(AttemptRecord(replica_id=str(shared), status=200),),
    )
    rows.store(as_owner, town.acorn, decision)
    url = f"/t/acorn/decisions/{decision.id}"
    page = town.owner.get(url).content.decode()
    for secret in ("h100-secret", "h200-secret", "31,337", ">77<", ">78<", "346 ms", "988 ms", "654 ms", "pressure", str(shared)):
        assert secret not in page
    assert "the wait on that pool was at most <strong>500 ms</strong>" in page
    assert "replica 1" in page
    everything = town.operator.get(url).content.decode()
    for text in ("h100-secret", "31,337", "346 ms", "654 ms"):
        assert text in everything


def test_no_decision_yet_is_taught(town: Town) -> None:
    page = town.owner.get("/t/acorn/decisions").content.decode()
    assert "No decision yet" in page
    assert "curl -N http://127.0.0.1:8080/v1/chat/completions" in page
    assert "No decision matches" in town.owner.get("/t/acorn/decisions?outcome=ok").content.decode()


def test_where_the_time_went_is_drawn_and_told(town: Town, as_owner: AsOwner) -> None:
    parts = {"ideal": 30_000, "missed_changed": 900_000, "queue_router": 250_000, "generation": 100_000}
    cause = CauseRecord(
        parts_us=parts, main="missed_changed", missed_tokens={"changed": 7000}, diverged_tokens=32, diverged_bytes=128, last_turn_tokens=7100
    )
    made = rows.record(town.acorn, ttft_s=1.18, cause=cause)
    rows.store(as_owner, town.acorn, made)
    page = town.owner.get(f"/t/acorn/decisions/{made.id}").content.decode()
    assert "behind a place where the conversation&#x27;s earlier text was changed" in page
    assert "from about token 32 (byte 128) of 7,100 tokens" in page
    assert "computed: text changed 900 ms" in page  # a title in the drawing
    assert "style=" not in page.split('id="cause"')[1].split("</section>")[0]


def test_what_was_left_of_the_target_and_which_terms_are_weighted_is_told(town: Town, as_owner: AsOwner) -> None:
    mine = rows.candidate(town.acorn.replica_ids[0], "a", terms={"wait": 1.93, "prefill": 0.2}, expected_ttft_s=1.23)
    fields = {"slo_ttft_s": 2.0, "slo_attainable": False, "decide_s": 0.3, "queue_s": 0.5, "candidates": (mine,)}
    weighted, plain = (rows.record(town.acorn, policy=policy, **fields) for policy in ("weighted", "ettft"))
    rows.store(as_owner, town.acorn, weighted, plain)
    page, control = (town.owner.get(f"/t/acorn/decisions/{one.id}").content.decode() for one in (weighted, plain))
    assert "no, 1.20 s of it were left" in page
    assert "score terms in seconds, times their weights</h2>" in page
    assert "as expected before it was sent; terms are seconds times the policy's weights</p>" in page
    assert "score terms in seconds</h2>" in control
    assert "as expected before it was sent</p>" in control
    assert "weights" not in control


@pytest.mark.parametrize("stream", [True, False])
def test_the_counts_of_what_was_computed_add_up_and_a_whole_answer_is_called_so(town: Town, as_owner: AsOwner, *, stream: bool) -> None:
    cause = CauseRecord(parts_us={"ideal": 34_000, "generation": 254_000}, missed_tokens={"never_seen": 16}, warm_tokens=368)
    made = rows.record(town.acorn, stream=stream, prompt_tokens=376, cached_tokens=352, ttft_s=0.1 if stream else None, e2e_s=0.288, cause=cause)
    rows.store(as_owner, town.acorn, made)
    page = town.owner.get(f"/t/acorn/decisions/{made.id}").content.decode()
    assert "so 24 had to be computed" in page
    assert "<dd>16 tokens</dd><dt>computed in any case</dt><dd>8 tokens: " in re.sub(r">\s+<", "><", page)
    assert ("which is the whole answer: it was not streamed" in page) is not stream


def _legends(page: str) -> dict[str, str]:
    """What legends of a page say, by the code that they say it for."""
    return dict(re.findall(r'<li><i class="f\d+"></i><data value="([^"]*)">([^<]*)</data></li>', page))


def test_outcomes_are_filtered_and_listed_by_their_terms(town: Town, as_owner: AsOwner) -> None:
    """Each of the enum's; the value that is sent stays the code."""
    outcomes = get_args(Outcome)
    rows.store(as_owner, town.acorn, *(rows.record(town.acorn, outcome=one) for one in outcomes))
    page = town.viewer.get("/t/acorn/decisions").content.decode()
    choices = page.split('id="outcome"')[1].split("</select>")[0]
    assert re.findall(r'<option value="([^"]+)">([^<]+)</option>', choices) == [(one, glossary.label("outcome", one)) for one in outcomes]
    assert set(re.findall(r'data-label="Outcome"><span class="pill \w+">([^<]+)<', page)) == {glossary.label("outcome", one) for one in outcomes}


def test_legends_say_every_part_and_every_term_of_a_score_in_words(town: Town, as_owner: AsOwner) -> None:
    """On the page of a decision and on that of causes; so do the drawings' titles, and no code is left in either."""
    parts: dict[str, int] = dict.fromkeys(PARTS, 100_000)
    terms = {one.name: 0.1 for one in REGISTER}
    mine = rows.candidate(town.acorn.replica_ids[0], "a", terms=terms, expected_ttft_s=0.3)
    made = rows.record(town.acorn, ttft_s=2.0, cause=CauseRecord(parts_us=parts, main="retry", own_pool=True), candidates=(mine,))
    rows.store(as_owner, town.acorn, made)
    causes = {part: glossary.label("cause", part) for part in PARTS}
    scores = {name: glossary.label("score", name) for name in terms}
    one, all_of_them = (town.owner.get(path).content.decode() for path in (f"/t/acorn/decisions/{made.id}", "/t/acorn/causes"))
    assert _legends(one) == causes | scores
    assert _legends(all_of_them) == causes
    titles = " ".join(re.findall(r"<rect[^>]*><title>([^<]*)</title>", one + all_of_them))
    assert [label for label in (causes | scores).values() if f"{label} " not in titles] == []


def test_terms_that_are_nothing_for_all_candidates_are_named_and_have_no_column(town: Town, as_owner: AsOwner) -> None:
    """The table is as wide as what decided; what decided nothing is said once."""
    first = rows.candidate(town.acorn.replica_ids[0], "a", terms={"wait": 0.0, "prefill": 0.2, "tier": 0.0}, expected_ttft_s=0.2)
    other = rows.candidate(town.acorn.replica_ids[1], "b", terms={"wait": 0.3, "prefill": 0.2, "tier": 0.0}, expected_ttft_s=0.5)
    made = rows.record(town.acorn, candidates=(first, other))
    rows.store(as_owner, town.acorn, made)
    page = town.owner.get(f"/t/acorn/decisions/{made.id}").content.decode()
    table = page.split("<h2>Candidates</h2>", 1)[1].split("</table>", 1)[0]
    words = {name: glossary.label("score", name) for name in ("wait", "prefill", "tier")}
    assert [f'data-label="{words[name]}"' in table for name in ("wait", "prefill", "tier")] == [True, True, False]
    said = table.split("</header>", 1)[0]
    assert "0 for all of them" in said
    assert [words[name] in said for name in ("wait", "prefill", "tier")] == [False, False, True]


def test_where_a_policy_scores_no_seconds_the_legend_says_what_is_drawn(town: Town, as_owner: AsOwner) -> None:
    mine = rows.candidate(town.acorn.replica_ids[0], "a", terms={}, expected_ttft_s=0.3)
    made = rows.record(town.acorn, policy="round_robin", candidates=(mine,))
    rows.store(as_owner, town.acorn, made)
    assert "expected time to first token" in _legends(town.owner.get(f"/t/acorn/decisions/{made.id}").content.decode()).values()


def test_a_decision_leads_to_its_namespace_and_replica_and_back(town: Town, as_owner: AsOwner) -> None:
    """Links of the page narrow the list to what shares the namespace, within a day, and to the replica; odd values narrow nothing."""
    made = town.acorn
    one = rows.record(made, started_at=rows.ago(seconds=10))
    other = rows.record(made, started_at=rows.ago(seconds=20), namespace="ns-other", replica_id=str(made.replica_ids[1]), replica_name="b")
    old = rows.record(made, started_at=rows.ago(hours=30))
    rows.store(as_owner, made, one, other, old)
    page = town.owner.get(f"/t/acorn/decisions/{one.id}").content.decode()
    assert f'href="/t/acorn/replicas/{made.replica_ids[0]}"' in page
    assert 'href="/t/acorn/decisions?namespace=ns-1f2e3d"' in page
    assert 'href="/t/acorn/namespaces/ns-1f2e3d"' in page

    def listed(query: str) -> list[str]:
        return _listed(town.owner.get(f"/t/acorn/decisions?{query}").content.decode())

    assert listed("namespace=ns-1f2e3d") == [str(one.id)]
    assert listed(f"replica={made.replica_ids[1]}") == [str(other.id)]
    assert listed("namespace=%00&replica=x") == [str(one.id), str(other.id), str(old.id)]
