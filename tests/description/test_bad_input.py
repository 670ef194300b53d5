"""Wrong job files, through the command line: exit code 2, no traceback, key, value and remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from twin.cli import main

GOOD = {
    "model": "gpt2",
    "machine": "perlmutter",
    "ranks": "8",
    "grid": "{data: 2, z: 2, y: 1, x: 2}",
    "batch": "{sequences: 16, micro_sequences: 2}",
}
HUGE = 10**30


def job_text(**changes: str | None) -> str:
    """The good job with keys replaced, added, or (None) left out; values are YAML text."""
    return "".join(f"{k}: {v}\n" for k, v in (GOOD | changes).items() if v is not None)


def grid(data: object = 2, z: object = 2, y: object = 1, x: object = 2) -> str:
    return f"{{data: {data}, z: {z}, y: {y}, x: {x}}}"


def batch(sequences: object = 16, micro: object = 2) -> str:
    return f"{{sequences: {sequences}, micro_sequences: {micro}}}"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    code = ended.value.code
    return (0 if code is None else int(code)), out, err


def write(folder: Path, content: str | bytes) -> str:
    path = folder / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard error of a command that must refuse its input cleanly."""
    code, out, err = run(capsys, *arguments)
    assert code == 2, (code, err)
    assert out == ""
    assert "Traceback" not in err + out
    assert err.strip()
    return err


def test_the_unchanged_job_is_accepted(capsys, tmp_path):
    """Otherwise every refusal below could have another reason than its change."""
    code, out, err = run(capsys, "simulate", write(tmp_path, job_text()), "--json")
    assert (code, err) == (0, "")
    assert out.startswith("{")


# Changes to the good job, and what the message must contain: the key and its value, the remedy.
WRONG_VALUES: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "number as text": ({"ranks": "'8'"}, ["ranks = '8'", "integer"]),
    "float for a count": ({"ranks": "8.5"}, ["ranks = 8.5", "integer"]),
    "boolean for a count": ({"ranks": "true"}, ["ranks = True", "integer"]),
    "zero ranks": ({"ranks": "0"}, ["ranks = 0", "greater than 0"]),
    "negative ranks": ({"ranks": "-8"}, ["ranks = -8", "greater than 0"]),
    "nan ranks": ({"ranks": ".nan"}, ["ranks = nan", "integer"]),
    "infinite ranks": ({"ranks": ".inf"}, ["ranks = inf", "integer"]),
    "huge ranks": ({"ranks": str(HUGE)}, [f"ranks = {HUGE}", "1000000000"]),
    "1e400 ranks": ({"ranks": "1e400"}, ["ranks = inf", "integer"]),
    "list for a count": ({"ranks": "[8]"}, ["ranks = [8]", "integer"]),
    "no value": ({"ranks": ""}, ["ranks", "integer"]),
    "key left out": ({"ranks": None}, ["ranks", "missing"]),
    "more ranks than the machine": ({"ranks": "12288", "grid": grid(x=4, data=1536)}, ["ranks = 12288", "6,144"]),
    "misspelt key": ({"rank": "8"}, ["rank = 8", "unknown", "'ranks'"]),
    "misspelt key below": ({"overlap": "{all_reduced: true}"}, ["overlap.all_reduced", "unknown", "'all_reduce'"]),
    "misspelt batch key": ({"batch": "{sequence: 16}"}, ["batch.sequence = 16", "'sequences'"]),
    "misspelt axis": ({"grid": "{date: 2, z: 2, x: 2}"}, ["grid.date = 2", "'data'"]),
    "misspelt key of a library": (
        {"machine": "{extends: perlmutter, libraries: {nccl: {ring: {efficiency: 0.5}}}}"},
        ["machine.libraries.nccl.ring.efficiency = 0.5", "'local_efficiency'"],
    ),
    "misspelt key of a kernel": (
        {"machine": "{extends: perlmutter, device: {attention: {flash2: {share: 0.5}}}}"},
        ["machine.device.attention.flash2.share = 0.5", "forward_share", "block_rows"],
    ),
    "misspelt key below a key with a dash": (
        {"machine": "{extends: perlmutter, libraries: {my-nccl: {ring: {efficiency: 0.5}}}}"},
        ["machine.libraries.my-nccl.ring.efficiency = 0.5", "'local_efficiency'"],
    ),
    "misspelt key below a key in capitals": (
        {"machine": "{extends: perlmutter, libraries: {nccl: {protocols: {LL128: {bases: 1 us}}}}}"},
        ["machine.libraries.nccl.protocols.LL128.bases", "'base'"],
    ),
    "unknown machine": ({"machine": "frontiere"}, ["machine = 'frontiere'", "'frontier'"]),
    "unknown model": ({"model": "gpt-50b"}, ["model = 'gpt-50b'", "'gpt-5b'"]),
    "unknown preset": ({"model": "{preset: gpt2-medum}"}, ["model.preset", "'gpt2-medium'"]),
    "machine is a number": ({"machine": "5"}, ["machine = 5"]),
    "machine file missing": ({"machine": "./none.yaml"}, ["none.yaml", "no such file"]),
    "model incomplete": (
        {"model": "{layers: 2, hidden: 64}"},
        ["model.heads", "model.sequence", "model.vocabulary", "missing"],
    ),
    "zero layers": ({"model": "{preset: gpt2, layers: 0}"}, ["model.layers = 0", "greater than 0"]),
    "negative hidden": ({"model": "{preset: gpt2, hidden: -768}"}, ["model.hidden = -768"]),
    "huge vocabulary": ({"model": f"{{preset: gpt2, vocabulary: {HUGE}}}"}, ["model.vocabulary"]),
    "heads do not divide hidden": ({"model": "{preset: gpt2, heads: 7}"}, ["model.heads = 7", "768", "nearest", "8"]),
    "grid too large": ({"grid": grid(data=3), "batch": batch(18, 1)}, ["grid", "12 ranks", "8", "set data to 2"]),
    "grid cannot fit": ({"grid": grid(1, 3, 1, 1), "batch": batch(18, 1)}, ["grid", "3", "1, 2, 4, 8"]),
    "x does not divide hidden": ({"ranks": "20", "grid": grid(x=5)}, ["grid.x = 5", "768", "nearest is 6"]),
    "y does not divide heads": ({"grid": grid(1, 1, 8, 1)}, ["grid.y = 8", "heads 12", "nearest is 6"]),
    "negative axis": ({"grid": grid(data=-2)}, ["grid.data = -2", "greater than 0"]),
    "zero axis": ({"grid": grid(z=0)}, ["grid.z = 0", "greater than 0"]),
    "boolean axis": ({"grid": grid(z="true")}, ["grid.z = True", "integer"]),
    "grid is a list": ({"grid": "[2, 2, 1, 2]"}, ["grid = [2, 2, 1, 2]", "auto"]),
    "grid is a word": ({"grid": "automatic"}, ["grid = 'automatic'", "auto"]),
    "sequences indivisible": ({"batch": batch(17, 1)}, ["batch.sequences = 17", "4", "nearest is 16"]),
    "micro indivisible": ({"batch": batch(16, 3)}, ["batch.micro_sequences = 3", "4", "nearest is 4"]),
    "micro is a word": ({"batch": batch(16, "most")}, ["batch.micro_sequences = 'most'", "auto"]),
    "zero sequences": ({"batch": batch(0)}, ["batch.sequences = 0", "greater than 0"]),
    "batch is a number": ({"batch": "16"}, ["batch = 16"]),
    "unknown precision": ({"precision": "fp8"}, ["precision = 'fp8'", "bf16", "fp16", "fp32"]),
    "not a truth value": ({"recompute": "maybe"}, ["recompute = 'maybe'", "boolean"]),
    "unknown attention": ({"attention": "flsh"}, ["attention = 'flsh'", "flash", "plain"]),
    "prefetch too deep": ({"overlap": "{prefetch_depth: 17}"}, ["overlap.prefetch_depth = 17", "16"]),
    "overlap is a truth value": ({"overlap": "false"}, ["overlap = False"]),
    "no such library here": ({"library": "rccl"}, ["library = 'rccl'", "nccl, pccl"]),
    "too many cached layers": ({"cache_gathered_layers": "13"}, ["cache_gathered_layers = 13", "12"]),
    "negative cached layers": ({"cache_gathered_layers": "-1"}, ["cache_gathered_layers = -1", "0"]),
    "straggler off the machine": ({"stragglers": "[{rank: 8, slowdown: 2}]"}, ["stragglers.0.rank = 8", "0 to 7"]),
    "straggler faster": ({"stragglers": "[{rank: 0, slowdown: 0.5}]"}, ["stragglers.0.slowdown = 0.5", "1"]),
    "straggler nan": ({"stragglers": "[{rank: 0, slowdown: .nan}]"}, ["stragglers.0.slowdown", "finite"]),
    "straggler boolean": ({"stragglers": "[{rank: 0, slowdown: true}]"}, ["stragglers.0.slowdown", "True", "number"]),
    "stragglers not a list": ({"stragglers": "{rank: 0}"}, ["stragglers"]),
    "size in an unlisted unit": (
        {"data_reduction": "{bucket: 25 gigabytes}"},
        ["data_reduction.bucket", "gigabytes", "'64 MiB'"],
    ),
    "size in a lone b": ({"data_reduction": "{bucket: 8 b}"}, ["data_reduction.bucket", "8 b", "MiB"]),
    "size as a rate": ({"data_reduction": "{bucket: 1 GB/s}"}, ["data_reduction.bucket", "GB/s", "MiB"]),
    "size of zero": ({"data_reduction": "{bucket: 0}"}, ["data_reduction.bucket", "greater than 0"]),
    "size negative": ({"data_reduction": "{bucket: -1 MB}"}, ["data_reduction.bucket", "greater than 0"]),
    "size overflows": ({"data_reduction": "{bucket: 1e400 MB}"}, ["data_reduction.bucket", "finite"]),
    "whole number overflows": ({"data_reduction": f"{{bucket: {10**400}}}"}, ["data_reduction.bucket"]),
    "negative seed": ({"seed": "-1"}, ["seed = -1", "0"]),
    "train is a word": ({"train": "fast"}, ["train = 'fast'"]),
    "path too long": ({"machine": "'" + "a" * 5000 + "/x.yaml'"}, ["aaaa"]),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_value_is_refused_with_key_value_and_remedy(capsys, tmp_path, name):
    changes, needles = WRONG_VALUES[name]
    path = write(tmp_path, job_text(**changes))
    message = refused(capsys, "simulate", path)
    for needle in [path, *needles]:
        assert needle in message


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in WRONG_VALUES
        if n in {"negative axis", "grid is a word", "micro is a word", "misspelt axis", "zero axis"}
    ],
)
def test_one_wrong_value_is_one_problem(capsys, tmp_path, name):
    """A wrong value where `auto` is also allowed is not told a second time."""
    message = refused(capsys, "simulate", write(tmp_path, job_text(**WRONG_VALUES[name][0])))
    assert message.splitlines()[0].endswith(": 1 problem"), message


WRONG_TEXTS: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": ("", ["empty"]),
    "only a comment": ("# later\n", ["empty"]),
    "a list": ("- a\n- b\n", ["mapping", "'a'"]),
    "a word": ("hello\n", ["mapping", "hello"]),
    "not YAML": ("model: [1, 2\n", ["line", "column", "YAML"]),
    "tab": ("model: gpt2\n\tmachine: frontier\n", ["line 2", r"\t"]),
    "key twice": (job_text() + "ranks: 16\n", ["line 6", "ranks", "twice"]),
    "key twice below": (job_text(grid="{x: 2, x: 2, z: 4}"), ["line 4", "'x'", "twice"]),
    "alias": ("a: &n 1\nb: *n\n", ["line 2", "aliases", "write the value out"]),
    "merge key": ("a: &n {x: 1}\ngrid:\n  <<: *n\n", ["line 3", "aliases"]),
    "billion laughs": (
        "a: &a [lol]\n" + "".join(f"{chr(b)}: &{chr(b)} [" + f"*{chr(b - 1)}," * 9 + "]\n" for b in range(98, 110)),
        ["aliases"],
    ),
    "deep list": ("a: " + "[" * 5000 + "]" * 5000, ["deep"]),
    "deep mapping": ("a: " + "{a: " * 90 + "1" + "}" * 90, ["deep"]),
    "bytes": (bytes(range(256)), ["UTF-8"]),
    "UTF-16": (job_text().encode("utf-16"), ["UTF-8"]),
    "NUL": (b"model: gpt2\0\n", ["YAML"]),
    "number of 5000 digits": (job_text(ranks="9" * 5000), ["YAML"]),
    "constructor tag": (job_text(name="!!python/object/apply:os.getcwd []"), ["line 6", "tag"]),
    "number as key": (job_text() + "5: 6\n", ["5", "text"]),
    "list as key": (job_text() + "? [1, 2]\n: 3\n", ["line 6", "key"]),
    "mapping as key": (job_text() + "? {a: 1}\n: 3\n", ["line 6", "key"]),
    "too large": ("a: " + "x" * (1 << 20), ["1 MiB"]),
}


@pytest.mark.parametrize("name", WRONG_TEXTS)
def test_what_is_not_a_job_file_is_refused(capsys, tmp_path, name):
    content, needles = WRONG_TEXTS[name]
    path = write(tmp_path, content)
    message = refused(capsys, "simulate", path)
    for needle in [path, *needles]:
        assert needle in message


def test_the_tables_are_as_long_as_promised():
    assert len(WRONG_VALUES) + len(WRONG_TEXTS) >= 40


def test_missing_file_and_directory(capsys, tmp_path):
    assert "no such file" in refused(capsys, "simulate", str(tmp_path / "none.yaml"))
    assert "not a file" in refused(capsys, "simulate", str(tmp_path))


def test_unreadable_file(capsys, tmp_path, monkeypatch):
    """As root every file is readable, so the refusal of the system is played."""
    path = write(tmp_path, job_text())

    def refuse(*_a: object, **_k: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    message = refused(capsys, "simulate", path)
    assert path in message
    assert "Permission denied" in message


def test_all_problems_of_a_file_are_told_at_once(capsys, tmp_path):
    """Six wrong keys, in one go, whether found by type or because a name is unknown."""
    wrong = {"ranks": "0", "precision": "fp8", "colour": "red", "batch": batch(0, -2)}
    message = refused(capsys, "simulate", write(tmp_path, job_text(**wrong)))
    keys = ["ranks = 0", "precision = 'fp8'", "colour", "batch.sequences = 0", "batch.micro_sequences = -2"]
    assert all(key in message for key in keys)
    named = {"machine": "frontiere", "model": "gpt-50b"}
    message = refused(capsys, "simulate", write(tmp_path, job_text(**wrong, **named)))
    for key in [*keys, "machine = 'frontiere'", "model = 'gpt-50b'"]:
        assert key in message


def test_all_broken_rules_are_told_at_once(capsys, tmp_path):
    """Rules that need the whole job are all checked too."""
    wrong = {
        "library": "rccl",
        "cache_gathered_layers": "99",
        "batch": batch(17, 1),
        "ranks": "20",
        "grid": grid(x=5),
        "stragglers": "[{rank: 20, slowdown: 2}]",
    }
    message = refused(capsys, "simulate", write(tmp_path, job_text(**wrong)))
    assert "5 problems" in message
    for key in ("library", "cache_gathered_layers", "batch.sequences", "grid.x", "stragglers.0.rank"):
        assert re.search(rf"^  {re.escape(key)} = ", message, re.M), message


IN_A_PROCESS = {
    "huge layers": job_text(model="{preset: gpt2, layers: 1000000000}"),
    "huge batch": job_text(batch=batch(10**9, 1)),
    "list as key": WRONG_TEXTS["list as key"][0],
    "deep list": WRONG_TEXTS["deep list"][0],
    "bytes": WRONG_TEXTS["bytes"][0],
    "alias": WRONG_TEXTS["alias"][0],
}


@pytest.mark.parametrize("name", IN_A_PROCESS)
@pytest.mark.process
def test_in_a_process_of_its_own_with_little_memory(tmp_path, name):
    """Refused by the real program before it takes 3 GiB of memory or 20 s of computing."""
    resource = pytest.importorskip("resource")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    command = [sys.executable, "-m", "twin", "simulate", write(tmp_path, IN_A_PROCESS[name])]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr[-500:]
    assert done.stderr.startswith("fourfold: ")
    assert done.stdout == ""
