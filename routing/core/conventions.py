"""OpenTelemetry's names, pinned in one place. GenAI: semantic-conventions-genai v0.1.0, all of it in development; HTTP: semantic-conventions 1.44.

What the conventions have no name for is ours, under ``saltroute.``. Nothing here may carry content: no messages, system instructions, tools, stop
sequences, header or query text, exception messages, and no conversation id, which a client could fill with text. A test holds what is sent against
:data:`NEVER`.
"""

from __future__ import annotations

from typing import Final, Literal

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
GENAI_VERSION: Final = "0.1.0"
SCOPE: Final = "saltroute"

Operation = Literal["chat", "text_completion"]
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"  # the engine's family: the conventions list none of them
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
RESPONSE_MODEL: Final = "gen_ai.response.model"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"  # s
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"  # cached ones included
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

METHOD: Final = "http.request.method"
ROUTE: Final = "http.route"
STATUS: Final = "http.response.status_code"
RESEND_COUNT: Final = "http.request.resend_count"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
URL_SCHEME: Final = "url.scheme"
ERROR_TYPE: Final = "error.type"
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE: Final = "service.instance.id"

OURS: Final = "saltroute."
DECISION_ID: Final = "saltroute.decision.id"
TENANT_ID: Final = "saltroute.tenant.id"
ENDPOINT: Final = "saltroute.endpoint.name"
NAMESPACE: Final = "saltroute.namespace.id"
OUTCOME: Final = "saltroute.outcome"
POLICY: Final = "saltroute.policy.name"
QUEUE_S: Final = "saltroute.queue.duration"  # s, as the others in .duration
DECIDE_S: Final = "saltroute.decide.duration"
EXPECTED_TTFT_S: Final = "saltroute.ttft.expected.duration"
TTFT_S: Final = "saltroute.ttft.duration"
MATCHED_TOKENS: Final = "saltroute.cache.matched_tokens"
EXPECTED_CACHED_TOKENS: Final = "saltroute.cache.expected_tokens"
CAUSE: Final = "saltroute.cause.main"
CAUSE_PART: Final = "saltroute.cause."  # and the part, s
REPLICA_ID: Final = "saltroute.replica.id"
REPLICA_NAME: Final = "saltroute.replica.name"
ATTEMPT_PART: Final = "saltroute.attempt.part"

# Metrics on the internal port, by the name that the conventions give them. A proxy's own upstream calls are a client's.
DURATION: Final = "gen_ai.client.inference.duration"
FIRST_CHUNK: Final = "gen_ai.client.inference.time_to_first_chunk"
PER_CHUNK: Final = "gen_ai.client.inference.time_per_output_chunk"
USED_INPUT: Final = "gen_ai.client.inference.usage.input_tokens"
USED_OUTPUT: Final = "gen_ai.client.inference.usage.output_tokens"
USED_CACHE: Final = "gen_ai.client.inference.usage.cache_read.input_tokens"
DURATION_BUCKETS_S: Final = tuple(0.01 * 2**power for power in range(14))  # 0.01 to 81.92

NEVER: Final = (
    "gen_ai.input",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.tool",
    "gen_ai.prompt",
    "gen_ai.conversation",
    "gen_ai.request.stop_sequences",
    "gen_ai.retrieval",
    "gen_ai.memory",
    "gen_ai.evaluation",
    "gen_ai.agent",
    "http.request.header",
    "http.response.header",
    "http.request.body.content",
    "http.response.body.content",
    "url.query",
    "url.full",
    "url.path",
    "exception",
    "user_agent",
    "client.address",
)


def prometheus(name: str, unit: Literal["seconds", ""] = "") -> str:
    """A metric's name as Prometheus writes it; counters get their ``_total`` from the client library."""
    return name.replace(".", "_") + (f"_{unit}" if unit else "")
