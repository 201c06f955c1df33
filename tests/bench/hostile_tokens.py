"""What a tenant's harmful template or tokenizer costs the others: ``python -m tests.bench.hostile_tokens [--seconds 20]``.

One router, two tenants. The one asks steadily (20 requests a second) and keeps the demo's own files; the other asks twice a second and brings
files that mean harm, with other bytes each time, so that none is ever put aside as known to be bad. The control is the same with files that are
sane, before and after. Printed for each: how many prompts got their exact tokens (the steady tenant's, and with sane files the other's too), and
how long the steady tenant's requests took. Router, fake engines and clients share one event loop; the files are worked on in processes of their
own. Loopback only; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.bench.traffic import quantile, quiet
from tests.fakes.artifacts import ENDLESS, EXPANSION, GIGABYTE, RANGE, REGEX, TEMPLATE, TOKENIZER, digest, naming
from tests.fakes.rig import KEY_A, KEY_B, Rig, standard_rig, until

STEADY_S, HARM_S = 0.05, 0.5
WARM = 40  # requests before the first that counts
PAIRS = {
    "sane": (TOKENIZER, TEMPLATE),
    "range(10**9)": (TOKENIZER, RANGE),
    "endless": (TOKENIZER, ENDLESS),
    "gigabyte": (TOKENIZER, GIGABYTE),
    "regex": (REGEX, TEMPLATE),
    "expansion": (EXPANSION, TEMPLATE),
}


def _other(kind: str, number: int) -> tuple[bytes, bytes]:
    """The pair with bytes that no worker has seen: white space in JSON, a comment in a template."""
    tokenizer, template = PAIRS[kind]
    return tokenizer + b" " * number, template + b"{# %d #}" % number


def _load(rig: Rig, tokenizer: bytes, template: bytes) -> None:
    rig.router.plane.tokens.prompts.load(digest(tokenizer), tokenizer, "tokenizer")
    rig.router.plane.tokens.prompts.load(digest(template), template, "chat_template")


def _prompt(number: int) -> dict[str, object]:
    return {"model": "m-7b", "messages": [{"role": "system", "content": "Salt. " * 60}, {"role": "user", "content": "a" * 40 + f"b{number}"}]}


def _exact(rig: Rig) -> float:
    return rig.router.plane.metrics.registry.get_sample_value("saltroute_tokenised_total", {"result": "exact"}) or 0.0


async def _harm(rig: Rig, kind: str) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(1, 1_000_000):
            pair = _other(kind, number)
            _load(rig, *pair)
            rig.publish(naming(rig.acme, *pair))
            group.create_task(rig.chat(_prompt(number), key=KEY_A))
            await asyncio.sleep(HARM_S)


async def measure(kind: str, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with standard_rig(Path(folder)) as rig:
            _load(rig, TOKENIZER, TEMPLATE)
            rig.publish(naming(rig.globex))
            await until(lambda: rig.router.artifacts._started)
            for number in range(WARM):
                await rig.chat(_prompt(number), key=KEY_B)
            taken_s: list[float] = []

            async def ask(number: int) -> None:
                began_s = time.perf_counter()
                reply = await rig.chat(_prompt(number), key=KEY_B)
                if reply.status == 200:
                    taken_s.append(time.perf_counter() - began_s)

            harm = asyncio.create_task(_harm(rig, kind))
            before, began_s, asked = _exact(rig), time.perf_counter(), 0
            async with asyncio.TaskGroup() as group:
                while time.perf_counter() - began_s < seconds:
                    group.create_task(ask(WARM + asked))
                    asked += 1
                    await asyncio.sleep(max(0.0, began_s + asked * STEADY_S - time.perf_counter()))
            harm.cancel()
            await asyncio.wait([harm])
            times = "  ".join(f"p{share} {1000 * quantile(taken_s, share / 100):.1f}" for share in (50, 95, 99))
            sys.stdout.write(
                f"{kind:13s} {asked} asked, {len(taken_s)} answered; {_exact(rig) - before:.0f} prompts of both tenants exact; "
                f"{times}  most {1000 * max(taken_s):.1f} ms\n"
            )
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a harmful template or tokenizer costs the other tenants.")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    quiet()
    for kind in (*PAIRS, "sane"):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the router itself runs
            runner.run(measure(kind, options.seconds))


if __name__ == "__main__":
    main()
