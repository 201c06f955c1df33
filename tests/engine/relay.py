"""Between an engine's event socket and whoever subscribes: passes every message on, or loses them without a word, as a network does."""

from __future__ import annotations

import threading

import zmq

POLL_MS = 50


class Relay:
    """A PUB socket of its own that repeats an engine's. ``dropping``: messages are lost; ``lost`` counts them."""

    def __init__(self, endpoint: str) -> None:
        self.dropping = False
        self.lost = 0
        self.passed = 0
        self._context = zmq.Context()
        self._in = self._context.socket(zmq.SUB)
        self._in.setsockopt(zmq.RCVHWM, 0)
        self._in.setsockopt(zmq.LINGER, 0)
        self._in.subscribe(b"")
        self._in.connect(endpoint)
        self._out = self._context.socket(zmq.PUB)
        self._out.setsockopt(zmq.LINGER, 0)
        self.port = self._out.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=32_768)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def _run(self) -> None:
        while not self._ending.is_set():
            if not self._in.poll(POLL_MS):
                continue
            message = self._in.recv_multipart()
            if self.dropping:
                self.lost += 1
            else:
                self.passed += 1
                self._out.send_multipart(message)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(5)
        self._in.close()
        self._out.close()
        self._context.term()
