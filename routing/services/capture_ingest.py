"""Ingest of captured requests: as that of decision records, from a stream of their own, so that neither can hold up or push out the other."""

from __future__ import annotations

import time
from collections import Counter
from typing import ClassVar

from routing.core import capture
from routing.core.capture import CaptureRecord
from routing.core.record import RecordError, verify
from routing.services.capture_store import store
from routing.services.records import AHEAD_S, Entry, Ingest, has_a_day

STREAM = "saltroute:captures"


class CaptureIngest(Ingest):
    """One consumer of the stream. ``counts``: ``stored``, ``repeated``, ``trimmed``, and each reason to drop."""

    stream: ClassVar[str] = STREAM

    def _store(self, entries: list[Entry]) -> bool:
        dropped: Counter[str] = Counter()
        found: list[CaptureRecord] = []
        key = capture.stream_key(self._records_key)
        with self._step("check"):
            latest = time.time() + AHEAD_S
            for _, fields in entries:
                try:
                    one = self._opened(fields, lambda _key, router, data, mac: verify(key, router, data, mac), capture.decode)
                except RecordError as error:
                    dropped[error.args[0]] += 1
                    continue
                if not one.at <= latest or not has_a_day(one.at):
                    dropped["of no time that could be"] += 1
                else:
                    found.append(one)
        with self._step("store"):
            done = self._patiently(lambda: store(found), len(found))
        if done is None:
            return False
        if done.refused:
            dropped["refused by the database"] += done.refused
        self.counts["stored"] += done.stored
        if done.repeated:
            self.counts["repeated"] += done.repeated
        self._tell(dropped)
        return True
