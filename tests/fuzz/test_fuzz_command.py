"""A sample through the command line: exit code 0, 1 or 2, one message, no traceback, nothing half-written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.compare.compare_traces import by_hand_measured, by_hand_predicted, table, write
from tests.fuzz.harness import cases, fuzz, guarded, tree
from tests.fuzz.mutations import NUMBERS, WORDS, as_json, damaged, texts
from tests.fuzz.test_fuzz_descriptions import JOB
from twin.cli import main

SMALL = {key: JOB[key] for key in ("name", "model", "machine", "ranks", "grid", "batch", "stragglers")}
STUDY = {"study": "sweep", "job": SMALL, "vary": {"batch.micro_sequences": [1, 2]}, "grid": "keep"}


def run(capsys: pytest.CaptureFixture[str], arguments: list[str], out: Path) -> tuple[int, str, str]:
    """Run a command under guard."""
    with guarded(out), pytest.raises(SystemExit) as ended:
        main(arguments)
    printed, said = capsys.readouterr()
    code = ended.value.code
    return (0 if code is None else int(code)), printed, said


def keeps_to_it(capsys: pytest.CaptureFixture[str], arguments: list[str], out: Path) -> None:
    """Check the exit code, what is printed, and that what is refused leaves nothing behind."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    code, printed, said = run(capsys, arguments, out)
    assert code in (0, 2), (arguments, said)
    assert "Traceback" not in said + printed
    if code:
        assert printed == ""
        assert said.strip()
        assert not [name for name in tree(out) if not name.endswith(".lock")], arguments
    elif "--json" in arguments:
        assert isinstance(json.loads(printed), dict)
    shown = [name for name in tree(out) if Path(name).name.startswith(".") and not name.endswith(".lock")]
    assert not shown, "something is half-written"


@cases(8, 150)
def test_commands_that_read_jobs(count: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    commands = st.sampled_from(
        [
            ["simulate", str(job), "--json", "--out", str(out / "run")],
            ["simulate", str(job)],
            ["simulate", str(job), "--json", "--engine", "ranks"],
            ["simulate", str(job), "--chrome", str(out / "a.json.gz")],
            ["goodput", str(job), "--json", "--seeds", "1", "--days", "1", "--interval", "1h"],
            ["record", str(job), "--out", str(out / "recording.json")],
        ]
    )

    def check(case: tuple[bytes, list[str]]) -> None:
        text, arguments = case
        if len(text) > 100_000:
            return
        job.write_bytes(text)
        keeps_to_it(capsys, arguments, out)

    fuzz(count, st.tuples(texts({**SMALL, "machine": "frontier"}, as_json), commands), check)


OPTIONS = [
    "--set",
    "--out",
    "--engine",
    "--seeds",
    "--ranks",
    "--interval",
    "--state",
    "--spares",
    "--days",
    "--machine",
    "--chrome",
    "--bytes",
    "--kind",
    "--stride",
    "--disk-interval",
    "--mode",
    "--json",
    "--nothing",
]


@cases(8, 150)
def test_options(
    count: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, out = tmp_path / "job.yaml", tmp_path / "out"
    job.write_bytes(as_json({**SMALL, "machine": "frontier"}))
    out.mkdir()
    monkeypatch.chdir(out)
    words = st.one_of(
        st.sampled_from([str(n) for n in NUMBERS]),
        st.sampled_from([w for w in WORDS if "\0" not in w and len(w) < 1000 and w.isprintable()]),
        st.just("ranks=8"),
    )
    starts = st.sampled_from(
        [
            ["simulate", str(job)],
            ["goodput", str(job), "--seeds=1", "--days=1"],
            ["collective", "--machine=frontier", "--kind=all_reduce", "--ranks=64", "--bytes=1MB"],
            ["gemm", "--machine=frontier", "--m=64", "--n=64", "--k=64"],
            ["machines"],
            ["models"],
        ]
    )

    def check(case: tuple[list[str], list[tuple[str, str]]]) -> None:
        start, more = case
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        code, printed, said = run(capsys, [*start, *(part for pair in more for part in pair)], out)
        assert code in (0, 1, 2), said  # 1: the system's own refusal of a path
        assert "Traceback" not in said + printed

    fuzz(count, st.tuples(starts, st.lists(st.tuples(st.sampled_from(OPTIONS), words), max_size=2)), check)


@cases(4, 60)
def test_studies(count: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "out"

    def check(text: bytes) -> None:
        file.write_bytes(text)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        arguments = ["study", str(file), "--out", str(out / "study"), "--workers", "1", "--json"]
        code, printed, said = run(capsys, arguments, out)
        assert code in (0, 1, 2), said  # 1: no point of it was possible
        assert "Traceback" not in said + printed

    fuzz(count, texts(STUDY, as_json), check)


@cases(6, 100)
def test_commands_that_read_runs(count: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    predicted = write(tmp_path / "predicted", "predicted", table(by_hand_predicted()))
    measured = write(tmp_path / "measured", "measured", table(by_hand_measured()))
    manifest = json.loads((measured / "manifest.json").read_text())
    events, out = (measured / "events.parquet").read_bytes(), tmp_path / "out"

    def check(case: tuple[bytes, bytes, bool]) -> None:
        head, body, page = case
        (measured / "manifest.json").write_bytes(head)
        (measured / "events.parquet").write_bytes(body)
        more = ["--html", str(out / "page.html")] if page else ["--json"]
        keeps_to_it(capsys, ["compare", str(predicted), str(measured), *more], out)

    manifest.pop("sha256")
    heads = st.one_of(st.just(as_json(manifest)), texts(manifest, as_json))
    fuzz(count, st.tuples(heads, st.one_of(st.just(events), damaged(events)), st.booleans()), check)
