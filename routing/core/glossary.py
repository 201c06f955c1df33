"""What the words of console, findings and alerts mean, in plain sentences, each in one place. Pure: words in, words out.

A *group* is a column or figure of the console; its terms are the values that code can put there. A test walks every type that such values come from,
so that none is shown without a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Term:
    """``label`` is what is shown in place of the code, ``meaning`` one or two sentences for somebody who meets it for the first time."""

    label: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Group:
    """``about`` says what the whole column is. ``codes_shown``: logs, metrics and API use the codes, so people are shown these beside the words."""

    title: str
    about: str
    terms: Mapping[str, Term]
    codes_shown: bool = False


_HEALTH = {
    "ok": Term("ok", "It answers the routers' health checks, and requests sent to it succeed."),
    "unknown": Term("not checked yet", "The router has just learned of it and has not asked it yet."),
    "asleep": Term("asleep", "The engine says that it sleeps: it has given its memory back, so its cache is empty and nothing is sent there."),
    "returning": Term(
        "returning", "It answers health checks again after a failure. The next request is sent there as a trial; if it succeeds, more follow."
    ),
    "failing (active)": Term("does not answer health checks", "Two or more health checks in a row failed or found nobody. No request is sent there."),
    "failing (passive)": Term(
        "requests to it fail",
        "Several requests in a row failed there, whatever its health check says, so none is sent for a while; then one is tried.",
    ),
    "blocked: address not allowed": Term(
        "address not allowed", "Its name leads to an address that routers may not connect to (SALTROUTE_ALLOWED_RANGES), so nothing is sent there."
    ),
}
_RESIDENCY = {
    "exact": Term("exact", "The engine reports every block that it stores or drops, and none of these reports is missing. They decide."),
    "warming": Term("warming", "Warming up: the engine's reports are read and true, but what it stored before they began is not all known yet."),
    "degraded": Term("degraded", "Reports of the engine are missing or cannot be read just now. They count half until that is mended."),
    "history": Term(
        "history", "By history: the engine's reports are not used. The router goes by what it sent there itself, and trusts that less with time."
    ),
}
_RESIDENCY_REASON = {
    "ok": Term("nothing against it", "Nothing speaks against the engine's reports."),
    "no_events": Term("no events", "The engine publishes no reports of its cache (KV events), or they cannot be reached."),
    "unsupported": Term("unknown format", "The reports are in a format that this router does not read."),
    "unknown_spec_kind": Term("unknown kind of cache", "The model has a kind of cache whose rule of reuse this router does not know."),
    "block_size": Term("block size unclear", "Blocks have another size than the engine says, or none was told."),
    "no_tokens": Term(
        "no tokenizer here",
        "No endpoint that sends there has its model's tokenizer and chat template at the router, so it cannot turn prompts into the engine's blocks.",
    ),
    "parity": Term(
        "tokens differ",
        "Sample prompts give other tokens here than at the engine: other files were declared, and no endpoint that sends there has the right ones.",
    ),
    "kappa": Term("promises not kept", "Answers show far fewer cached tokens than the reports promised, so they are not believed for now."),
    "budget": Term("no room in the index", "The router's index of cached blocks is full, and blocks of this replica were dropped from it."),
    "gap": Term("reports lost", "Reports were lost and the engine no longer has them, so some removals may be unknown."),
    "replay": Term("catching up", "The router missed reports and has asked the engine to send them again."),
    "stale": Term("silent", "Nothing has come from the engine for too long, or the connection is gone."),
    "malformed": Term("unreadable", "Reports came that cannot be read."),
    "subscribing": Term("connecting", "The router has just connected to the engine's reports."),
    "restart": Term("restarted", "The engine has restarted with an empty cache, and what it stores is being learned."),
    "late_join": Term("joined late", "The router came after the engine had begun, and the engine's buffer does not reach back to its beginning."),
    "relearning": Term("relearning", "What was known was forgotten because it was in doubt, and is learned anew."),
}
_CAUSE = {
    "ideal": Term(
        "a warm, idle replica", "What the first token takes at best: the prompt is cached and nobody else is served. No setting makes it shorter."
    ),
    "router": Term("router", "Reading the request, counting its tokens and choosing a replica."),
    "queue_router": Term("queue in the router", "Waiting in the router until a replica had time. More or faster replicas make it shorter."),
    "queue_engine": Term(
        "queue in the engine",
        "Others' requests were ahead of it inside the engine. Engines do not report this, so it is estimated, where others were known to be there.",
    ),
    "retry": Term("failed attempts", "Attempts at replicas that failed before the one that served it."),
    "no_answer": Term("no answer", "The replica did not answer, and failed the router's health checks meanwhile: it hangs, or cannot be reached."),
    "transfer": Term("cache transfer", "Moving the prompt's cache from the replica that computed it to the one that answered."),
    "missed_evicted": Term(
        "computed again: evicted", "Prompt tokens that had been sent to a replica, which no longer had them: its cache is too small for its traffic."
    ),
    "missed_not_ready": Term("computed: not ready yet", "Prompt tokens that another request, still being computed, was about to leave in the cache."),
    "missed_policy": Term(
        "computed: held elsewhere",
        "Prompt tokens that another replica held. The policy chose this one because it was expected to be quicker all in all.",
    ),
    "missed_replica_lost": Term(
        "computed again: replica lost", "Prompt tokens that were cached on a replica which restarted, is gone or is out of service."
    ),
    "missed_other_pool": Term(
        "computed: held in another pool",
        "Prompt tokens that had been sent to a replica of another pool, through another endpoint. Requests to this endpoint cannot go there.",
    ),
    "missed_changed": Term(
        "computed: text changed", "Prompt tokens behind a place where the conversation's earlier text was changed: a date, an edit, a cut."
    ),
    "missed_namespace_changed": Term(
        "computed again: identity changed",
        "The same text was cached under another cache identity: an epoch, a scope or a revision has changed since.",
    ),
    "missed_never_seen": Term("computed: new text", "Prompt tokens that nobody had sent before."),
    "slow_replica": Term("slow replica", "The same work on the fastest kind of replica in the pool would have taken this much less. Estimated."),
    "generation": Term("generation", "From the first token to the end of the answer."),
    "unexplained": Term("unexplained", "What is left: the engine took longer than anything known explains."),
    "replica": Term(
        "the replica", "Others' work there, its speed and what is unexplained, as one figure: on a pool of the platform's they are not told apart."
    ),
}
_TRUST = {
    "fine": Term("fine", "What was reused is what was predicted."),
    "relearn": Term("relearning", "Predictions from the engine's reports failed: they are read anew."),
    "demote": Term("not believed", "Predictions kept failing, so the router goes by its own history here for a while."),
    "flag": Term("look at it", "Relearning did not help several times: somebody has to look at this engine."),
}
_TRUST_CAUSE = {
    "template_mismatch": Term(
        "another template", "The engine counts other prompt lengths than the router: their chat templates or tokenizers differ."
    ),
    "block_size": Term("another block size", "What is reused comes in multiples of another block size than the engine told."),
    "events_lost": Term("reports lost", "Reports of the engine were lost."),
    "eviction_faster_than_events": Term(
        "evicts while requests wait",
        "The engine drops blocks between the decision and the moment the request begins: its cache is too small for what is asked of it at once.",
    ),
    "unknown": Term("cause unknown", "The answers do not say why."),
}
_ISOLATION = {
    "unverified": Term(
        "unverified",
        "No audit has shown yet that this engine keeps cached text of different identities apart. In an audited pool it serves one identity alone.",
    ),
    "isolated": Term("isolated", "An audit passed: the engine shares no cached text between identities. It serves everybody."),
    "suspect": Term("suspect", "A probe gave an odd answer, or no audit has passed for 48 hours. In an audited pool it serves one identity alone."),
    "quarantined": Term(
        "quarantined", "Sharing between identities was seen and confirmed. It serves nobody until it is repaired and two audits pass."
    ),
}
_STATE = {
    "active": Term("active", "In service: requests may be sent there."),
    "draining": Term("draining", "No new requests; those it runs are finished."),
    "paused": Term("paused", "Out of service and left out of every count until it is resumed."),
    "unreachable": Term(
        "unreachable",
        "In service, but no router that reports can reach it. What its cache holds is unknown, and nothing is sent there until it answers.",
    ),
}
_REFUSAL = {
    "draining": Term("draining", "The replica is being drained: it gets no new requests."),
    "paused": Term("paused", "The replica is out of service."),
    "prefill_only": Term("prefill only", "The replica only computes prompts for others and does not answer."),
    "no_prefill": Term("does not prefill", "The replica does not compute prompts for others."),
    "other_engine": Term("another engine", "The replica runs another engine family than the endpoint is for."),
    "address_not_allowed": Term("address not allowed", "Routers may not connect to the replica's address."),
    "credential": Term("credential unreadable", "This router cannot open the replica's credential: it was sealed to another root key."),
    "tried": Term("tried already", "This request was sent there before and failed."),
    "unreachable": Term("unreachable", "The replica does not answer health checks, or sleeps."),
    "breaker_open": Term("rests after failures", "Requests failed there of late, so none is sent for a while."),
    "model_not_served": Term("model not served", "The engine says that it does not have this model or adapter."),
    "isolation": Term("kept for another identity", "The replica is not proven to keep identities apart, and is assigned to another one."),
    "quarantined": Term("quarantined", "The replica was seen to share cached text between identities, and serves nobody."),
    "full": Term("full", "It runs as many requests as it may (max_concurrency)."),
    "kv_full": Term("cache nearly full", "Running requests use nearly all of its cache, so another would wait or push one out."),
    "ramping": Term("just came back", "It came back a moment ago and takes a growing share first."),
    "not_shortlisted": Term("not on the short list", "Of very many replicas only the most promising are weighed."),
}
_SCORE = {
    "wait": Term("wait", "Seconds until others' work there lets this request begin."),
    "prefill": Term("prefill", "Seconds to compute the prompt tokens that are not cached there."),
    "tier": Term("from a lower tier", "Seconds to bring cached tokens in from the engine's second, slower cache."),
    "adapter": Term("adapter", "Seconds to bring the LoRA adapter into the engine, and what that costs others."),
    "pressure": Term(
        "pressure", "A price in seconds for filling a cache that is too small for its traffic: what is stored pushes out what others need."
    ),
    "slo_guard": Term(
        "objective at risk",
        "A price in seconds for coming close to the endpoint's objective, so that busy prefixes spread to another replica in time.",
    ),
    "external_price": Term("price", "A price in seconds for what has to be computed: it delays those behind and pushes out what others keep."),
}
_FAILURE = {
    "connect": Term("no connection", "The engine refused a connection, or its host could not be found."),
    "connect_timeout": Term("no connection in time", "The engine's host did not answer in time when a connection was asked for."),
    "blocked": Term("address not allowed", "Routers may not connect to the engine's address (SALTROUTE_ALLOWED_RANGES)."),
    "no_socket": Term("router out of sockets", "The router itself had no socket left. The engine is not to blame."),
    "unreachable": Term("engine fell silent", "The engine answered nothing any more, health checks neither, so the request was given up there."),
    "first_byte_timeout": Term("no answer in time", "The engine took the request and did not begin to answer in time."),
    "idle_timeout": Term("went silent", "The engine began to answer and then sent nothing for too long."),
    "broken": Term("connection broke", "The connection ended before the answer did."),
    "stale_connection": Term("connection had ended", "The engine had closed a connection that was to be used again."),
    "too_large": Term("answer too large", "The answer was larger than the router takes."),
    "encoding": Term("answer unreadable", "The answer was compressed in a way that the router does not read."),
    "model_not_served": Term("model not served", "The engine says that it does not have this model or adapter."),
    "aborted": Term("given up", "The engine gave the request up without saying why."),
    "error_event": Term("error in the stream", "The engine sent an error in the middle of its answer."),
    "truncated": Term("ended too early", "The stream ended without its end mark."),
}
_WORD = {
    "token": Term("prompt tokens", "Pieces of a prompt's text, a few characters each. Engines read, compute and keep text by them."),
    "first_token": Term(
        "first token",
        "The beginning of the answer. The time until it comes (time to first token, TTFT) is what somebody waits before anything is seen.",
    ),
    "cache": Term(
        "cache",
        "What an engine computed of prompts and keeps in memory (KV cache). What begins with the same text need not be computed there again.",
    ),
    "replica": Term("replica", "One engine that serves the model. A pool has one or more, and each has a cache of its own."),
    "pool": Term("pool", "Replicas among which the requests of an endpoint are shared out."),
    "target": Term("target", "The time to first token that the endpoint's objective asks for."),
    "evicted": Term("evicted", "Dropped from a cache to make room for other prompts."),
    "identity": Term(
        "cache identity",
        "What requests must have in common to share cached text: tenant, scope, model, revisions and epoch among others. Another one finds nothing.",
    ),
    "policy": Term("policy", "The rule by which a router chooses a replica for each request."),
    "attempt": Term("attempt", "One try at a replica. If it fails before the answer began, another replica may be tried."),
    "estimated": Term("estimated", "Not measured: engines do not report it for one request, so it is worked out from what they do report."),
}
_EVIDENCE = {
    "event": Term("event", "The engine itself reported these blocks."),
    "inferred": Term("inferred", "The router sent this text there before, and nothing says that it is gone."),
    "pending": Term("pending", "A request that is being computed there will leave this text in the cache."),
    "none": Term("none", "Nothing of this prompt is believed to be there."),
}
_INEXACT = {
    "undeclared": Term("no tokenizer declared", "The endpoint's model names no tokenizer, so the router cannot know the engine's tokens."),
    "template_mismatch": Term("tokens differ", "Samples gave other tokens here than at the engine: another tokenizer or chat template was declared."),
    "mistake": Term("router's mistake", "Counting the tokens failed in a way that it should not; the router's log names the kind."),
    "media": Term("media", "The prompt has images or other media: the tokens are known up to the first of them."),
    "no_tokenizer": Term("tokenizer not loaded", "The router does not hold the tokenizer yet, or had no room for it."),
    "no_template": Term("no chat template", "The router holds no chat template for the model, and the request is a chat."),
    "bad_tokenizer": Term("tokenizer refused", "The tokenizer's file cannot be loaded, or is not a tokenizer."),
    "bad_template": Term("template refused", "The chat template cannot be compiled."),
    "set_aside": Term("set aside", "The tokenizer or template broke several of its workers of late, and rests for a while."),
    "request": Term("odd request", "The engine will refuse the request, or the router cannot tell what the engine makes of it."),
    "unsupported": Term("unsupported member", "The request has a member that changes the prompt in a way the router does not reproduce."),
    "many_prompts": Term("several prompts", "The request holds more than one prompt."),
    "template_error": Term("template failed", "The chat template refused these messages; the engine, where it has the same one, will do so too."),
    "special_tokens": Term(
        "special tokens unknown", "The template names special tokens whose text no file tells: upload the whole tokenizer_config.json."
    ),
    "date": Term("date in the template", "The template asks for today's date, or for chance, so what the engine makes of it cannot be known."),
    "deadline": Term("no time", "Counting the tokens would have taken longer than a request may wait for it (ROUTER_TOKENS_S)."),
    "memory": Term("no memory", "Counting the tokens needed more memory than one prompt may have."),
    "too_long": Term("too long", "The prompt is longer than the router counts tokens of."),
    "queue_full": Term("too many at once", "More of the tenant's prompts waited to be counted than may wait."),
    "worker": Term("worker failed", "The process that counts tokens ended without an answer."),
    "stopped": Term("router stopping", "The router was about to stop."),
}
_OUTCOME = {
    "ok": Term("ok", "The answer was complete."),
    "client_error": Term("client error", "The request itself was at fault; no replica is to blame."),
    "client_cancelled": Term("client left", "The client closed the connection before the end."),
    "upstream_error": Term("replica failed", "Every replica that was tried failed."),
    "timeout": Term("timed out", "A replica did not answer in time."),
    "refused": Term("refused", "No replica took it: no room, no time, or none that may serve it."),
    "incomplete": Term("broke off", "The answer ended before its end."),
}
_AUDIT = {
    "pass": Term("pass", "Every control hit the cache, and no probe under another identity did."),
    "fail": Term("fail", "A probe found text that was cached under another identity, and a second look confirmed it."),
    "inconclusive": Term("inconclusive", "A control did not hit, or answers are missing. It proves nothing either way and changes nothing."),
    "refused": Term("refused", "The audit was not carried out: see its reason."),
    "queued": Term("waits", "It waits for a worker, for the replica, or for tomorrow's budget."),
    "running": Term("runs", "Its probes are being sent."),
    "finished": Term("ended", "It has ended without an outcome."),
    "proved elsewhere": Term("proved elsewhere", "No probe can try this; it follows from another case, or is proven by tests of the encoding."),
    "not expressible": Term(
        "not tried", "There is nothing here to try it with: no adapter, image model or external cache. It is listed, not passed."
    ),
}
_FIGURE = {
    "kappa": Term(
        "Kappa", "Cached tokens that answers reported, over those that were predicted. 1: as predicted. Below 1, predictions are discounted by it."
    ),
    "failures_below": Term(
        "Failures below",
        "With 95 % confidence, fewer than this share of requests could meet text cached under another identity without this audit having noticed. "
        "More probes make it smaller.",
    ),
    "negatives": Term("Negatives", "Probes that must not hit the cache, because their text was cached under another identity."),
    "controls": Term("Controls", "Probes that must hit the cache. Without their hit a miss proves nothing."),
    "utilisation": Term("Utilisation", "The share of time in which the replica had work of any router."),
    "copies": Term("Copies of a block", "How many replicas hold the same block, on average. 1: nobody else holds what this one holds."),
    "fixed_cost": Term("Fixed cost", "What a request takes there at least, however short: the engine's own work for each."),
    "prefill_rate": Term("Prefill", "Prompt tokens that the engine computes in a second. Assumed until it was measured."),
    "resident": Term(
        "Resident blocks", "Blocks of tokens in the engine's cache, as its events tell. Unknown without events, and while it is unreachable."
    ),
    "queued_tokens": Term("Queued tokens", "Prompt tokens sent there that still have to be computed."),
    "build": Term("Build", "A digest of what the engine says of version, models and settings. Another build has to be audited anew."),
    "epoch": Term("Epoch", "A number in every cache identity. Raising it makes all that was cached before unreachable."),
}

GROUPS: Mapping[str, Group] = MappingProxyType(
    {
        "state": Group("State of a replica", "Whether people want requests to be sent there, and whether they can be.", _STATE),
        "health": Group("Health", "What keeps requests away from a replica, as routers see it.", _HEALTH),
        "residency": Group("Residency", "On what the belief rests that a replica holds a prompt's beginning in its cache.", _RESIDENCY),
        "residency_reason": Group(
            "Reasons of residency", "Why an engine's own reports of its cache are trusted less than fully.", _RESIDENCY_REASON, codes_shown=True
        ),
        "figure": Group("Figures", "Numbers of the pages on replicas and audits.", _FIGURE),
        "trust": Group("Trust", "Whether predicted reuse came true at an engine.", _TRUST, codes_shown=True),
        "trust_cause": Group(
            "Causes of mistrust", "Why predicted reuse did not come true, as far as the answers tell.", _TRUST_CAUSE, codes_shown=True
        ),
        "isolation": Group("Isolation", "What audits have found of an engine.", _ISOLATION),
        "audit": Group("Outcomes of audits", "Of a whole audit and of each of its cases.", _AUDIT),
        "cause": Group(
            "Where a request's time went", "Parts that add up to the whole. The measure is a replica that holds the prompt and is idle.", _CAUSE
        ),
        "inexact": Group(
            "Why tokens were estimated",
            "What kept the router from the prompt's own tokens. Such a request goes by what the router sent before, compared byte by byte.",
            _INEXACT,
            codes_shown=True,
        ),
        "outcome": Group("Outcomes of requests", "How a request ended.", _OUTCOME),
        "refusal": Group("Why a replica was not chosen", "The first reason that applied.", _REFUSAL),
        "failure": Group("Why an attempt failed", "What became of a request at a replica that did not answer it.", _FAILURE),
        "score": Group("Score", "Seconds that a policy weighs; the replica with the least sum is chosen.", _SCORE),
        "evidence": Group("Evidence", "How it is known that a replica holds part of a prompt.", _EVIDENCE),
        "word": Group("Words", "What the sentences of these pages speak of.", _WORD),
    }
)


def term(group: str, code: str) -> Term | None:
    """What a code of a group means; None for one that this version does not know, such as a newer router's."""
    return GROUPS[group].terms.get(code)


def label(group: str, code: str) -> str:
    """What is shown for a code; one that is not known, as words."""
    found = term(group, code)
    return code.replace("_", " ") if found is None else found.label


def shown(group: str, code: str) -> str:
    """What stands in a group's column: the label; where codes are shown, the code, and the label behind it where that says more."""
    words = label(group, code)
    if not GROUPS[group].codes_shown:
        return words
    return code if words == code.replace("_", " ") else f"{code} ({words})"


def anchor(group: str, code: str) -> str:
    """The id under which a term stands on the page of terms."""
    return f"{group}-{''.join(letter if letter.isalnum() else '-' for letter in code)}"
