"""`fourfold data` on a small application of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from runtime.data.command import data
from runtime.data.tokens import open_dataset
from twin.description.problems import DescriptionError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(data)


def run(*arguments: object):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def texts(tmp_path) -> Path:
    """A directory of sixty short texts, and one file of JSON lines beside it."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(60):
        (folder / f"{i:02}.txt").write_text(f"text number {i}")
    lines = [json.dumps({"body": f"line {i}"}) for i in range(40)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    return folder


def test_text_and_json_lines_become_one_data_set(tmp_path, texts):
    done = run(
        tmp_path / "set",
        "--text",
        texts,
        "--jsonl",
        tmp_path / "lines.jsonl",
        "--key",
        "body",
        "--validation-fraction",
        0.2,
        "--json",
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert done.stderr == ""
    assert told["directory"] == str(tmp_path / "set")
    assert told["train"]["documents"] + told["validation"]["documents"] == 100
    found = open_dataset(tmp_path / "set", vocabulary=256, sequence=8)
    held = b"".join(t.tokens.astype("u1").tobytes() for t in (found.train, found.validation))
    expected = [f"text number {i}" for i in range(60)] + [f"line {i}" for i in range(40)]
    assert sorted(held.decode().split("\0")[:-1]) == sorted(expected)


def test_people_get_a_table(tmp_path, texts):
    done = run(tmp_path / "set", "--text", texts, "--validation-fraction", 0.2)
    assert done.exit_code == 0, done.output
    assert "tokenizer bytes, vocabulary 256" in done.stdout
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    total = sum(len(f"text number {i}") + 1 for i in range(60))
    assert int(rows["train"][0]) + int(rows["validation"][0]) == 60
    assert int(rows["train"][1]) + int(rows["validation"][1]) == total


def test_the_standard_library_is_the_default(tmp_path):
    done = run(tmp_path / "set", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["train"]["tokens"] > 1e6


def test_a_tokenizer_file_can_be_given(tmp_path, texts):
    library = pytest.importorskip("tokenizers")
    words = {"text": 0, "number": 1, "?": 2, "</s>": 3}
    tokenizer = library.Tokenizer(library.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    done = run(
        tmp_path / "set",
        "--text",
        texts,
        "--tokenizer",
        tmp_path / "words.json",
        "--json",
        "--validation-fraction",
        0.2,
    )
    told = json.loads(done.stdout)
    assert (told["tokenizer"], told["vocabulary"], told["separator"]) == ("tokenizer.json", 4, 3)
    found = open_dataset(tmp_path / "set", vocabulary=4, sequence=4)
    assert (found.train.tokens.reshape(-1, 4) == [0, 1, 2, 3]).all()


def test_a_data_set_is_replaced_only_by_force(tmp_path, texts):
    arguments = (tmp_path / "set", "--text", texts, "--validation-fraction", 0.2)
    assert run(*arguments).exit_code == 0
    again = run(*arguments)
    assert isinstance(again.exception, DescriptionError)
    assert "pass --force" in str(again.exception)
    assert run(*arguments, "--force").exit_code == 0
    kept = tmp_path / "set" / "raw" / "book.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    assert "holds raw beside a data set of Fourfold, which would be lost" in str(run(*arguments, "--force").exception)
    assert kept.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--text", "nowhere"), "nowhere: no such file"),
        (("--jsonl", "nowhere"), "nowhere: no such file"),
        (("--tokenizer", "nowhere"), "nowhere: cannot be read"),
        (("--validation-fraction", "7"), "validation_fraction = 7.0: must be above 0 and below 1"),
    ],
)
def test_bad_input_is_told_apart_from_defects(tmp_path, options, words):
    done = run(tmp_path / "set", *options)
    assert isinstance(done.exception, DescriptionError)
    assert words in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_for_terminals(tmp_path, texts, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = run(tmp_path / "set", "--text", texts, "--validation-fraction", 0.2, "--json")
    json.loads(done.stdout)
    assert "60 documents" in done.stderr


@pytest.mark.process
@pytest.mark.quick
def test_help_needs_no_numpy():
    code = "import sys, runtime.data.command; print({'numpy', 'rich', 'pyarrow', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in {"set()", "{'rich'}"}  # typer itself may load rich
