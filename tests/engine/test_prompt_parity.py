"""The router's tokens against those of the real vLLM: its own request model, renderer and tokenizer, over generated bodies and agents' dialogues.

The first test runs no engine, only vLLM's installed packages. ``-s`` shows the share of equal prompts and each difference.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from routing.prompts.service import Limits, NoTokens, PromptModel, Prompts, Tokens
from tests.engine import wire
from tests.engine.conftest import required
from tests.engine.installation import EngineUnavailableError, Installation
from tests.engine.vllm_cpu import MODEL_NAME, Replica
from tests.routing.prompts import small, templates
from tests.routing.prompts.cases import Case, by_hand, dialogues, generated, long

pytestmark = pytest.mark.engine
ORACLE = Path(__file__).with_name("prompt_oracle.py")
NS = b"n" * 16
OWNER = b"acme"
# Things that the router says it cannot do exactly, and may say so of these bodies.
ADMITTED = {"request", "unsupported", "template_error", "special_tokens"}


@dataclass(frozen=True, slots=True)
class Model:
    """A folder as vLLM loads it: tokenizer, its configuration with the chat template, and a model's configuration."""

    name: str
    folder: Path


@pytest.fixture(scope="module")
def installation() -> Installation:
    found = Installation.default()
    try:
        found.ensure()
    except EngineUnavailableError as error:
        if required():
            pytest.fail(f"no engine: {error}", pytrace=False)
        pytest.skip(f"no engine: {error}")
    return found


@pytest.fixture(scope="module")
def models(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """The engine tests' model, the same with templates of our own, and what $SALTROUTE_TOKENIZERS holds."""
    made = [Model("as installed", installation.model)]
    for name, template in (("chatml", templates.CHATML), ("parts", templates.PARTS)):
        made.append(Model(name, _variant(installation.model, installation, tmp_path_factory.mktemp(name), template)))
    named = os.environ.get("SALTROUTE_TOKENIZERS")
    folders = sorted(Path(named).iterdir()) if named else []
    made += [Model(each.name, _variant(each, installation, tmp_path_factory.mktemp(each.name), None)) for each in folders]
    return [*made, *(_with_bos(each, tmp_path_factory.mktemp("bos")) for each in made if each.name.startswith("llama"))]


def _with_bos(model: Model, folder: Path) -> Model:
    """The same with a tokenizer that puts a BOS in front of texts."""
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text((model.folder / name).read_text())
    tokenizer = small.with_bos(Tokenizer.from_file(str(model.folder / "tokenizer.json")), "<|begin_of_text|>")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Model(f"{model.name}, BOS", folder)


def _variant(source: Path, installation: Installation, folder: Path, template: str | None) -> Path:
    """A model's folder with another chat template or tokenizer; weights are not needed."""
    configuration = json.loads((source / "tokenizer_config.json").read_text())
    if template is not None:
        configuration["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    (folder / "tokenizer.json").symlink_to((source / "tokenizer.json").resolve())
    # Transformers takes the tokenizer's class from the model's type, and that of Qwen2 is built anew from the vocabulary, with Qwen2's own pattern.
    model = json.loads((installation.model / "config.json").read_text())
    if configuration.get("tokenizer_class") == "PreTrainedTokenizerFast":
        model |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(model))
    return folder


def theirs(installation: Installation, model: Model, cases: Sequence[Case]) -> list[dict[str, object]]:
    """What vLLM makes of the cases, in their order."""
    asked = "".join(json.dumps({"api": case.api, "body": case.body}) + "\n" for case in cases)
    environment = {
        **{name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ},
        "PATH": f"{installation.venv / 'bin'}:/usr/bin:/bin",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    done = subprocess.run(
        [str(installation.python), str(ORACLE), str(model.folder)],
        input=asked, capture_output=True, text=True, env=environment, timeout=900, check=False,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(cases), done.stderr[-2000:]
    return answers


async def ours(model: Model, cases: Sequence[Case]) -> list[Tokens | NoTokens]:
    """What the router makes of the cases, through the sandbox."""
    tokenizer, configuration = ((model.folder / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json"))
    digests = [hashlib.sha256(each).digest() for each in (tokenizer, configuration)]
    prompts = Prompts(limits=Limits())
    await prompts.start()
    try:
        prompts.load(digests[0], tokenizer, "tokenizer")
        prompts.load(digests[1], configuration, "chat_template")
        assert await prompts.admit(digests[0], "tokenizer", owner=OWNER, deadline_s=60) is None
        assert await prompts.admit(digests[1], "chat_template", owner=OWNER, deadline_s=60) is None
        return [
            await prompts.tokens(case.body, api=case.api, model=PromptModel(*digests), ns_key=NS, owner=OWNER, deadline_s=30)  # type: ignore[arg-type]
            for case in cases
        ]
    finally:
        await prompts.stop()


async def test_prompts_have_the_ids_that_vllm_gives_them(installation: Installation, models: list[Model]) -> None:
    cases = [*by_hand(), *generated(150), *dialogues(40), long(20_000), long(100_000)]
    wrong: list[str] = []
    for model in models:
        answers, results = theirs(installation, model, cases), await ours(model, cases)
        equal = refused = unknown = 0
        for case, answer, result in zip(cases, answers, results, strict=True):
            ids = answer.get("ids")
            if isinstance(result, Tokens) and list(result.ids) == ids:
                equal += 1
            elif isinstance(result, NoTokens) and ids is None:
                refused += 1
            elif isinstance(result, Tokens) and ids is None:
                refused += 1  # vLLM refuses the body: whatever we say of it is never compared with anything
            elif isinstance(result, NoTokens) and result.reason in ADMITTED:
                unknown += 1
                print(f"{model.name}: {case.name}: {result.reason}")  # noqa: T201
            else:
                wrong.append(f"{model.name}: {case.name}: {_difference(result, ids)}")
        served = len(cases) - refused
        print(f"{model.name}: {equal} of {served} prompts equal ({equal / served:.1%}), {unknown} without tokens, {refused} refused by vLLM")  # noqa: T201
    assert not wrong, "\n".join(wrong)


async def test_prompts_have_the_ids_that_the_engine_used(installation: Installation, replicas: list[Replica]) -> None:
    """The ids that an engine says it used, for what this one takes: it was started without tool calling."""
    wrong: list[str] = []
    cases = [case for case in [*by_hand(), *generated(60)] if "tools" not in case.body]
    results = await ours(Model("as installed", installation.model), cases)
    used = 0
    for case, result in zip(cases, results, strict=True):
        path = "/v1/chat/completions" if case.api == "chat" else "/v1/completions"
        answer = wire.post(f"{replicas[0].url}{path}", case.body | {"model": MODEL_NAME, "max_tokens": 1, "return_token_ids": True})
        if answer.status != 200:
            continue
        value = answer.json()
        ids = value["prompt_token_ids"] if case.api == "chat" else value["choices"][0]["prompt_token_ids"]
        used += 1
        if not isinstance(result, Tokens) or list(result.ids) != ids:
            wrong.append(f"{case.name}: {_difference(result, ids)}")
    print(f"engine: {used - len(wrong)} of {used} prompts equal")  # noqa: T201
    assert used > 100
    assert not wrong, "\n".join(wrong)


def _difference(result: Tokens | NoTokens, ids: object) -> str:
    if isinstance(result, NoTokens) or not isinstance(ids, list):
        return f"{result} against {ids}"[:200]
    first = next((place for place, pair in enumerate(zip(result.ids, ids, strict=False)) if pair[0] != pair[1]), min(len(ids), len(result.ids)))
    return f"{len(result.ids)} against {len(ids)} ids, first difference at {first}: {list(result.ids[first : first + 8])} {ids[first : first + 8]}"
