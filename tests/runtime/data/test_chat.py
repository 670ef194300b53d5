"""Conversations: layouts, templates, which tokens count, and what training makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runtime.data.batches import Batches
from runtime.data.build import build_dataset
from runtime.data.chat import Message, chatml, conversations, messages_of, template_of
from runtime.data.tokenizer import ByteTokenizer, JsonTokenizer, Piece
from runtime.data.tokens import open_dataset
from tests.runtime import runs
from twin.cli import main
from twin.description.problems import DescriptionError

TALK = [Message("user", "Hi?"), Message("assistant", "Ho."), Message("user", "More"), Message("assistant", "No")]
LAYOUTS = {
    "messages": {"messages": [{"role": m.role, "content": m.content} for m in TALK]},
    "sharegpt": {
        "conversations": [{"from": "gpt" if m.role == "assistant" else "human", "value": m.content} for m in TALK]
    },
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def template(tmp_path: Path, text: str = TEMPLATE, name: str = "chat_template.jinja") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_turns_say_the_same(layout):
    assert messages_of(LAYOUTS[layout], "here") == TALK


def test_layouts_of_one_answer():
    expected = [Message("user", "Add.\n\n1 2"), Message("assistant", "3")]
    assert messages_of({"instruction": "Add.", "input": "1 2", "output": "3"}, "here") == expected
    assert messages_of({"prompt": "Add.\n\n1 2", "completion": "3"}, "here") == expected
    assert messages_of({"instruction": "Add.", "input": "", "output": "3"}, "here")[0].content == "Add."


def test_answers_and_their_ends_count():
    marked = chatml(TALK)
    assert "".join(p.text for p in marked.pieces if p.counts) == "Ho.<|im_end|>No<|im_end|>"
    assert marked.text.startswith("<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\nHo.<|im_end|>")


def test_a_template_of_one_s_own(tmp_path):
    marked = template_of(template(tmp_path, TEMPLATE.removeprefix("{{ bos_token }}")))(TALK)
    assert marked.text == "<user>Hi?<assistant>Ho.</s><user>More<assistant>No</s>"
    assert [p.text for p in marked.pieces if p.counts] == ["Ho.</s>", "No</s>"]
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    other = template_of(template(tmp_path, json.dumps(config), "tokenizer_config.json"))(TALK)
    assert other.text == "<s>" + marked.text


def test_a_template_s_tokens_are_those_of_the_tokenizer_beside_it(tmp_path):
    """As Hugging Face writes them apart; an answer without its end was learnt by models that never stopped."""
    text = (
        "{{ bos_token }}{% if tools is not none %}[TOOLS]{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
        "[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    )
    path = template(tmp_path, text)
    with pytest.raises(
        DescriptionError, match=r"names bos_token, which neither tokenizer_config\.json nor special_tok"
    ):
        template_of(path)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": f"</{name[0]}>"}}))
        marked = template_of(path)(TALK)
        assert marked.text.startswith("<s>[INST] Hi? [/INST]Ho.")
        assert [p.text for p in marked.pieces if p.counts] == [f"Ho.</{name[0]}>", f"No</{name[0]}>"]
    # each token where it is told first; null is none, and a template of JSON is no other
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": None}))
    apart = template(tmp_path, json.dumps({"chat_template": text}), "chat_template.json")
    for one in (path, apart):
        marked = template_of(one)(TALK)
        assert marked.text.startswith("[INST] Hi? [/INST]Ho.</s>")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DescriptionError, match=r"tokenizer_config\.json: is not JSON"):
        template_of(path)


def test_what_is_said_beside_turns_is_not_lost():
    """A system prompt, turns before an instruction, and answers that are not to be learnt (OpenAI's `weight`)."""
    alpaca = {"instruction": "And 2?", "output": "4", "system": "Double.", "history": [["1?", "2"]]}
    system, *turns = messages_of(alpaca, "here")
    assert system == Message("system", "Double.")
    assert turns == [
        Message("user", "1?"),
        Message("assistant", "2"),
        Message("user", "And 2?"),
        Message("assistant", "4"),
    ]
    assert messages_of({**LAYOUTS["sharegpt"], "system": "Be brief."}, "here") == [
        Message("system", "Be brief."),
        *TALK,
    ]
    assert messages_of({**LAYOUTS["sharegpt"], "tools": "[]", "functions": []}, "here") == TALK
    weighed = [{"role": m.role, "content": m.content} for m in TALK]
    weighed[1]["weight"], weighed[3]["weight"] = 0, 1
    found = messages_of({"messages": weighed}, "here")
    assert [m.counts for m in found] == [True, False, True, True]
    assert chatml(found).text == chatml(TALK).text
    assert [p.text for p in chatml(found).pieces if p.counts] == ["No", "<|im_end|>"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ messages[9].content }}", "the template fails on it"),
        ("{{ ''.__class__.__mro__ }}", "the template fails on it: SecurityError"),
        ("{{ messages.append(1) }}", "the template fails on it: SecurityError"),
        ("{% for i in range(10000000) %}x{% endfor %}", "the template fails on it: OverflowError"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}xxxxxxxxxx{% endfor %}{% endfor %}", "writes more than"),
        ("{% for m in messages %}{{ m.content * 10 ** 14 }}{% endfor %}", "the template fails on it: MemoryError"),
        ("{{ raise_exception('roles must take turns') }}", "the template refuses it: roles must take turns"),
        ("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", "as a continuation of the turns"),
    ],
)
def test_a_template_that_misbehaves_is_a_clear_error(tmp_path, text, words):
    lines = tmp_path / "talk.jsonl"
    lines.write_text(json.dumps(LAYOUTS["messages"]) + "\n")
    with pytest.raises(DescriptionError, match=rf"talk\.jsonl:1: .*{words}"):
        list(conversations([lines], template_of(template(tmp_path, text))))


@pytest.mark.parametrize(
    "text",
    ["{% for m in messages %}" * 25 + "{% endfor %}" * 25, f"{{{{ {'(' * 9999}1{')' * 9999} }}}}", "{% if %}"],
    ids=["loops", "brackets", "no condition"],
)
def test_a_template_that_cannot_be_compiled_is_a_clear_error(tmp_path, text):
    with pytest.raises(DescriptionError, match=r"chat_template\.jinja: is not a template of Jinja"):
        template_of(template(tmp_path, text))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"text": "x"}, "is no conversation: it has text; expected messages, prompt and completion"),
        ({"messages": []}, "messages = .*: expected a list of turns"),
        ({"messages": [{"role": "judge", "content": "x"}]}, r"messages\.0 = .*: expected role: human, gpt, user"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, r"messages\.0 = .*: expected role: human, gpt, user"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\.0: content = 3: expected text"),
        ({"prompt": "x", "completion": None}, "completion: expected text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "has no answer of the assistant"),
        ({"prompt": "x", "completion": ""}, "has no answer of the assistant"),
        ({"prompt": "x", "completion": "y", "tools": [{"name": "f"}]}, "tools: is not written out by"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]},
            r"messages\.0: tool_calls: is not written out by",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]},
            r"messages\.0: weight = 0\.5: expected 0",
        ),
        ({"messages": [{"role": "assistant", "content": "x", "weight": 0}]}, "has no answer of the assistant"),
        ({"instruction": "x", "output": "y", "history": ["z"]}, r"history\.0 = 'z': expected a pair of texts"),
        ({"instruction": "x", "output": "y", "history": 1}, r"history = 1: expected a list of pairs"),
        (
            {"system": "x", "messages": [{"role": "system", "content": "y"}, {"role": "assistant", "content": "z"}]},
            "system: is said by the first turn too",
        ),
    ],
)
def test_what_is_no_conversation_is_a_clear_error(tmp_path, value, words):
    lines = tmp_path / "talk.jsonl"
    lines.write_text("\n" + json.dumps(value) + "\n")
    with pytest.raises(DescriptionError, match=rf"talk\.jsonl:2.*{words}"):
        list(conversations([lines], chatml))


def test_tokens_belong_to_the_piece_in_which_they_begin(tmp_path):
    """Whole words are tokens here: one that reaches over a border counts as where it begins."""
    tokenizers = pytest.importorskip("tokenizers")
    known = {word: i for i, word in enumerate(["[UNK]", "a", "b", "ab", "<e>"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=known, merges=[("a", "b")], unk_token="[UNK]"))
    made.add_special_tokens(["<e>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = JsonTokenizer(tmp_path / "tokenizer.json")
    ids, counts = tokenizer.encode_pieces(
        [Piece("a", counts=False), Piece("ba", counts=True), Piece("<e>", counts=True)]
    )
    assert (ids.tolist(), counts.tolist()) == ([3, 1, 4], [False, True, True])
    quoted, _ = tokenizer.encode_pieces([Piece("<e>", counts=False, special=False), Piece("<e>", counts=False)])
    assert quoted.tolist()[-1] == 4
    assert 4 not in quoted.tolist()[:-1]
    assert tokenizer.encode("<e>").tolist().count(4) == 0


def data_set(tmp_path: Path, sequence: int = 48, count: int = 40) -> Path:
    lines = tmp_path / "talk.jsonl"
    said = [{"prompt": f"{i}+{i}", "completion": str(2 * i)} for i in range(count)]
    lines.write_text("".join(json.dumps(each) + "\n" for each in said))
    out = tmp_path / "data"
    build_dataset(out, conversations([lines], short), ByteTokenizer(), 0.2, sequence=sequence)
    return out


def short(messages):
    return chatml(messages[-1:])


def test_each_conversation_has_a_sequence_of_its_own(tmp_path):
    """The bytes of a window are one conversation and padding; what counts is the answer and what ends it."""
    out = data_set(tmp_path)
    data = open_dataset(out, vocabulary=256, sequence=48)
    batches = Batches(data.train, 48, 0, 256, shuffle=False)
    assert batches.windows == data.manifest.train.documents
    assert data.manifest.train.left_out == 0
    targets = batches.targets(0, batches.windows)
    assert int(targets.sum()) == data.manifest.train.targets
    for window, counts in zip(batches.sequences(0, batches.windows), targets, strict=True):
        text = bytes(window[:48].astype(np.uint8)).rstrip(b"\0").decode()
        assert text.startswith("<|im_start|>assistant\n")
        answer = bytes(window[1:][counts].astype(np.uint8)).decode()
        assert text == f"<|im_start|>assistant\n{answer}\n"


def test_another_sequence_and_longer_conversations(tmp_path):
    out = data_set(tmp_path)
    with pytest.raises(DescriptionError, match=r"laid out for sequences of 48; set model\.sequence to that"):
        open_dataset(out, vocabulary=256, sequence=32)
    (out / "train.targets.bin").unlink()
    with pytest.raises(DescriptionError, match=r"needs train\.targets\.bin beside it"):
        open_dataset(out, vocabulary=256, sequence=48)
    (tmp_path / "more").mkdir()
    with pytest.raises(DescriptionError, match="all 40 conversations are longer"):
        data_set(tmp_path / "more", sequence=8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--chat", "x.jsonl"], "--sequence: is missing"),
        (["--chat", "x.jsonl", "--text", "y", "--sequence", "9"], "--chat: cannot be mixed"),
        (["--template", "t"], "--template = 't': is for conversations"),
        (["--chat", "x.jsonl", "--sequence", "9"], "x.jsonl: no such file"),
        (["--chat", "x.jsonl", "--sequence", "9", "--template", "t"], "t: cannot be read"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["data", "out", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_answers_are_learnt_and_questions_are_not(tmp_path):
    """All answers begin alike, prompts are noise: the loss on answers falls below that of a byte of a prompt."""
    lines = tmp_path / "talk.jsonl"
    noise = np.random.default_rng(1).integers(97, 123, (60, 12))
    said = [{"prompt": bytes(row.astype(np.uint8)).decode(), "completion": "yes yes"} for row in noise]
    lines.write_text("".join(json.dumps(each) + "\n" for each in said))
    arguments = ("--chat", str(lines), "--sequence", "80", "--validation-fraction", "0.2")
    with pytest.raises(SystemExit) as ended:
        main(["data", str(tmp_path / "data"), *arguments])
    assert ended.value.code in (0, None)
    model = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 80, "vocabulary": 256}
    train = {"data": str(tmp_path / "data"), "steps": 60, "learning_rate": {"peak": 2e-2}, "sample": {"tokens": 0}}
    job = runs.write_job(tmp_path, model=model, train=train)
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validation = [line["validation_loss"] for line in found if "validation_loss" in line]
    assert validation[0] > 4
    assert validation[-1] < 0.5  # a letter of a prompt has ln 26 = 3.3 at the least
