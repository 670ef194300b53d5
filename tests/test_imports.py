"""What importing and starting the twin costs: no heavy packages, every module on its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import twin

pytestmark = pytest.mark.process

ROOT = Path(twin.__file__).parent
HEAVY = ("torch", "dash", "pandas", "scipy", "matplotlib", "runtime", "dashboards")
MODULES = sorted(
    ".".join(["twin", *p.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for p in ROOT.rglob("*.py")
    if p.name != "__main__.py"
)
OFFLINE = {"twin.calibrate.fit_collectives", "twin.calibrate.fit_gemm"}
"""Calibration tools, run by hand; they alone may need scipy."""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def loaded(*modules: str) -> set[str]:
    """Top-level packages that are loaded after importing the modules in a fresh process."""
    code = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = python(code, *modules)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["twin", "twin.cli"])
@pytest.mark.quick
def test_starting_loads_nothing_heavy(name):
    """Nor numpy, SimPy, pyarrow or plotly, which only a command that needs them loads."""
    packages = loaded(name)
    assert not packages & {*HEAVY, "numpy", "simpy", "pyarrow", "plotly", "yaml"}


@pytest.mark.quick
def test_no_module_of_the_twin_loads_anything_heavy():
    assert not loaded(*(m for m in MODULES if m not in OFFLINE)) & set(HEAVY)


def test_calibration_tools_load_no_framework():
    present = [m for m in MODULES if m in OFFLINE]
    assert not loaded(*present) & (set(HEAVY) - {"scipy"})


@pytest.mark.parametrize("name", ["twin.description.load", "twin.strategies.four_d.step"])
@pytest.mark.quick
def test_description_and_schedule_load_no_engine(name):
    """A program that only reads job files pays for no simulator."""
    assert not loaded(name) & {"simpy", "pyarrow", "plotly", "typer"}


def test_every_module_imports_by_itself():
    """In any order: forked children of one clean process, each importing a single module."""
    code = """
import importlib, os, sys
import numpy, pydantic, pyarrow, pyarrow.parquet, simpy, yaml
bad = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        bad.append(name)
print(*bad)
"""
    assert len(MODULES) > 40
    done = python(code, *(m for m in MODULES if m not in OFFLINE))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], done.stderr


def test_a_simulation_loads_nothing_heavy(tmp_path):
    """What a command imports when it runs counts too."""
    job = tmp_path / "job.yaml"
    job.write_text("{model: gpt2, machine: laptop, ranks: 1, grid: {}, batch: {sequences: 1, micro_sequences: 1}}")
    code = (
        "import sys\n"
        "from twin.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        # the commands of both are known to the command line; what they run on is not loaded
        f"print(sorted(set({HEAVY!r}) & set(sys.modules) - {{'runtime', 'dashboards'}}), file=sys.stderr)"
    )
    done = python(code, "simulate", str(job), "--json", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"


@pytest.mark.quick
def test_as_a_program():
    """`python -m twin`, its answers and its exit codes."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "twin", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("--version").stdout.strip() == f"fourfold {twin.__version__}"
    wrong = run("machines", "frontiere")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "'frontier'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert run("simulte").returncode == 2


@pytest.mark.quick
def test_a_reader_that_stops_early_is_no_error():
    """`fourfold schema job | head -1` prints no traceback."""
    command = [sys.executable, "-m", "twin", "schema", "machine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
