"""Documents to windows: every token is predicted once, from no other document, and padding counts for nothing."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.build import build_dataset
from runtime.data.tokenizer import JsonTokenizer
from runtime.inference.texts import text_of
from runtime.inference.trained import open_run
from tests.profiles import examples
from tests.runtime import asked
from twin.description.problems import DescriptionError

DOCUMENT = st.text(st.characters(codec="utf-8"), max_size=3 * asked.SEQUENCE)


@examples()
@given(texts=st.lists(DOCUMENT, min_size=1, max_size=6), most=st.none() | st.integers(1, 4))
def test_each_token_is_predicted_once(tmp_path_factory, texts, most):
    folder = tmp_path_factory.mktemp("texts")
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["first", *texts]))
    found = text_of(open_run(asked.make_run(folder), [], 1, None), file, most, "text")
    windows = list(found.windows())
    pairs = []
    for window in windows:
        tokens = window.read().tolist()
        assert len(tokens) == asked.SEQUENCE + 1
        assert not any(tokens[window.targets + 1 :])
        pairs += list(pairwise(tokens[: window.targets + 1]))
    expected = []
    for text in ["first", *texts]:
        line = [asked.SEPARATOR, *text.encode()]
        expected += list(pairwise(line))
    assert pairs == expected[: len(pairs)]
    assert most is not None or len(pairs) == len(expected)
    assert found.count == len(windows) == len(windows[:most])
    assert found.padded == sum(window.targets < asked.SEQUENCE for window in windows)
    if most is None:
        assert found.documents == 1 + len(list(filter(None, texts)))
    assert np.sum([window.targets for window in windows]) == len(pairs)


def test_without_a_separator_the_first_token_only_predicts(tmp_path):
    """With the tokenizer of the run, which lies beside its data set."""
    library = pytest.importorskip("tokenizers")
    words = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    texts = (f"a b {'c ' * number}" for number in range(60))
    made = build_dataset(tmp_path / "data", texts, JsonTokenizer(tmp_path / "words.json"), 0.3)
    run = asked.make_run(tmp_path, train={"data": str(tmp_path / "data")})
    described = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**described, "data": made.model_dump(mode="json")}))
    (tmp_path / "text.txt").write_text("b a c")
    found = text_of(open_run(run, [], 1, None), tmp_path / "text.txt", None, "text")
    (window,) = found.windows()
    assert window.targets == 2
    assert window.read().tolist() == [1, 0, 2, *[0] * (asked.SEQUENCE - 2)]
    (tmp_path / "text.txt").write_text("b")
    with pytest.raises(DescriptionError, match="holds no text to predict"):
        text_of(open_run(run, [], 1, None), tmp_path / "text.txt", None, "text")
