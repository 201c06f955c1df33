"""``manage.py ingest``: the process that stores decision records, and captured requests beside them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from routing import queries
from routing.services.capture_ingest import CaptureIngest
from routing.services.records import BLOCK_S, Ingest

ANSWER_S = 5.0


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT, then finishes the batches in hand. Each stream has a thread and a database connection of its own."""

    help = "Store the routers' decision records and captured requests. Runs in the foreground under a supervisor; several may run at once."
    requires_system_checks = ()  # its role may insert records and nothing else

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        if settings.RECORDS_KEY is None:
            raise CommandError("SALTROUTE_RECORDS_KEY_FILE is not set: without it no record can be told from a forged one")
        consumer = f"{socket.gethostname()}-{os.getpid()}"
        ingest, captures = (
            kind(
                queries.valkey(BLOCK_S + ANSWER_S),
                records_key=settings.RECORDS_KEY,
                consumer=consumer,
                claim_idle_s=settings.INGEST_CLAIM_IDLE_S,
            )
            for kind in (Ingest, CaptureIngest)
        )

        def end(_number: int, _frame: FrameType | None) -> None:
            ingest.stop()
            captures.stop()

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        beside = threading.Thread(target=_run, args=(captures, ingest), name="captures")
        beside.start()
        try:
            ingest.run()
        finally:
            captures.stop()
            beside.join()
        if captures.counts:
            self.stdout.write("captures: " + ", ".join(f"{count} {what}" for what, count in sorted(captures.counts.items())))
        self.stdout.write(", ".join(f"{count} {what}" for what, count in sorted(ingest.counts.items())) or "nothing to store")
        if ingest.spent_s:
            self.stdout.write("time: " + ", ".join(f"{name} {spent_s:.3f} s" for name, spent_s in ingest.spent_s.items()))


def _run(captures: CaptureIngest, ingest: Ingest) -> None:
    """Store captures until told to stop. A mistake there ends the process, as one in the records' own thread does, and the supervisor begins anew."""
    try:
        captures.run()
    except BaseException:
        ingest.stop()
        raise
    finally:
        connection.close()
