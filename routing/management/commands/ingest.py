"""``manage.py ingest``: the process that stores decision records."""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from routing import queries
from routing.services.records import BLOCK_S, Ingest

ANSWER_S = 5.0


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT, then finishes the batch in hand."""

    help = "Store the routers' decision records. Runs in the foreground under a supervisor; several may run at once."
    requires_system_checks = ()  # its role may insert records and nothing else

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        if settings.RECORDS_KEY is None:
            raise CommandError("SALTROUTE_RECORDS_KEY_FILE is not set: without it no record can be told from a forged one")
        ingest = Ingest(
            queries.valkey(BLOCK_S + ANSWER_S),
            records_key=settings.RECORDS_KEY,
            consumer=f"{socket.gethostname()}-{os.getpid()}",
            claim_idle_s=settings.INGEST_CLAIM_IDLE_S,
        )

        def end(_number: int, _frame: FrameType | None) -> None:
            ingest.stop()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        ingest.run()
        self.stdout.write(", ".join(f"{count} {what}" for what, count in sorted(ingest.counts.items())) or "nothing to store")
        if ingest.spent_s:
            self.stdout.write("time: " + ", ".join(f"{name} {spent_s:.3f} s" for name, spent_s in ingest.spent_s.items()))
