"""Features of sentences and pictures, by a small network with made-up weights."""

import json
import pickle
import shutil
import struct
import sysconfig
import zlib

import numpy as np
import pytest
from conftest import hetal, toy
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from hetal import HetalFeatures, errors

HIDDEN, INNER, HEADS, WORDS = 24, 40, 3, 16


@pytest.fixture(autouse=True)
def extractor():
    import os

    if not os.environ.get("HETAL_EXTRACT") and not shutil.which("hetal-extract", path=sysconfig.get_path("scripts")):
        pytest.skip("no hetal-extract: pip install 'hetal[features]'")


def write_tensors(path, tensors):
    """A safetensors file."""
    header, parts, place = {}, [], 0
    for name, shape in tensors.items():
        values = np.random.RandomState(zlib.crc32(name.encode())).uniform(-0.5, 0.5, size=shape).astype("<f4")
        if len(shape) == 1 and name.endswith("weight"):
            values += 1
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [place, place + values.nbytes]}
        parts.append(values.tobytes())
        place += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def linear(tensors, name, outputs, inputs):
    tensors[f"{name}.weight"], tensors[f"{name}.bias"] = (outputs, inputs), (outputs,)


def norm(tensors, name):
    tensors[f"{name}.weight"], tensors[f"{name}.bias"] = (HIDDEN,), (HIDDEN,)


def write_config(folder, kind, **more):
    sizes = {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "hidden_act": "gelu", "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
    }
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **sizes, **more}))


@pytest.fixture(scope="module")
def sentence_network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    write_config(
        folder, "bert", vocab_size=WORDS, max_position_embeddings=20, layer_norm_eps=1e-12, pad_token_id=1,
        type_vocab_size=2,
    )
    words = ["<s>", "<pad>", "</s>", "<unk>", "play", "some", "jazz", "will", "it", "rain", "music", "sun", "a", "b", "c", "d"]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                "<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: k for k, word in enumerate(words)}, "unk_token": "<unk>"},
    }))
    tensors = {
        "embeddings.word_embeddings.weight": (WORDS, HIDDEN),
        "embeddings.position_embeddings.weight": (20, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    norm(tensors, "embeddings.LayerNorm")
    layer = "encoder.layer.0."
    for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        linear(tensors, layer + part, HIDDEN, HIDDEN)
    norm(tensors, layer + "attention.output.LayerNorm")
    linear(tensors, layer + "intermediate.dense", INNER, HIDDEN)
    linear(tensors, layer + "output.dense", HIDDEN, INNER)
    norm(tensors, layer + "output.LayerNorm")
    write_tensors(folder / "model.safetensors", tensors)
    return folder


TEXTS = ["play some jazz", "will it rain", "play music", "sun"]


def test_sentences(sentence_network):
    extractor = HetalFeatures(sentence_network, device="cpu")
    with pytest.raises(NotFittedError):
        extractor.transform(TEXTS)
    features = extractor.fit_transform(TEXTS)
    assert features.shape == (4, HIDDEN) and features.dtype == np.float64
    assert len(extractor.get_feature_names_out()) == HIDDEN
    # A row does not depend on the others, and their order is that of the inputs.
    np.testing.assert_allclose(extractor.transform(TEXTS[::-1])[::-1], features, atol=1e-5)
    assert not np.allclose(features[0], features[1])
    assert clone(extractor).network == sentence_network


def test_columns_of_tables(sentence_network):
    """A column, or a table of one column, as a ColumnTransformer gives them."""
    import pandas
    import polars
    import pyarrow

    extractor = HetalFeatures(sentence_network, device="cpu").fit(TEXTS)
    expected = extractor.transform(TEXTS)
    frame = pandas.DataFrame({"text": TEXTS}, index=[7, 8, 9, 10])
    for column in (frame, frame["text"], frame.to_numpy(), polars.Series(TEXTS), pyarrow.array(TEXTS)):
        np.testing.assert_array_equal(extractor.transform(column), expected)
    named = extractor.set_output(transform="pandas").transform(frame)
    assert named.columns.tolist() == extractor.get_feature_names_out().tolist()
    assert named.index.tolist() == frame.index.tolist()
    with pytest.raises(errors.InvalidInput, match="2 columns"):
        extractor.transform(frame.assign(other="x"))


def test_a_pickled_transformer_is_the_same(sentence_network):
    extractor = HetalFeatures(sentence_network, device="cpu").fit(TEXTS)
    again = pickle.loads(pickle.dumps(extractor))
    np.testing.assert_array_equal(again.transform(TEXTS), extractor.transform(TEXTS))


def test_a_pipeline_takes_sentences(sentence_network):
    texts = [f"{text} {end}" for text in TEXTS for end in "abcd" * 4]
    labels = ["music" if "play" in text else "weather" for text in texts]
    model = make_pipeline(HetalFeatures(sentence_network, device="cpu"), toy(max_epochs=6))
    assert model.fit(texts, labels).score(texts, labels) > 0.7


def test_another_network_is_refused(sentence_network, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(sentence_network, copy)
    extractor = HetalFeatures(copy, device="cpu").fit(TEXTS)
    bytes_ = bytearray((copy / "model.safetensors").read_bytes())
    bytes_[-3] ^= 1
    (copy / "model.safetensors").write_bytes(bytes_)
    with pytest.raises(errors.ExtractionFailed):
        extractor.transform(TEXTS)


def test_the_program_reads_parquet(tmp_path):
    """hetal-extract reads the file; the process with the secret key does not."""
    import pyarrow
    import pyarrow.parquet

    rows = np.random.RandomState(0).normal(size=(64, 3))
    kinds = ["a" if row[0] > 0 else "b" for row in rows]
    table = pyarrow.table({"x": rows[:, 0], "y": rows[:, 1], "z": rows[:, 2], "kind": kinds})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    text = hetal("plan", "--features", tmp_path / "rows.parquet", "--label-column", "kind", "--json")
    assert '"b"' in text, text


def test_bad_inputs(sentence_network):
    for bad in ("one text", [], [3], [""]):
        with pytest.raises(errors.InvalidInput):
            HetalFeatures(sentence_network).fit(bad)
    with pytest.raises(errors.ExtractionFailed):
        HetalFeatures(sentence_network / "nowhere").fit(TEXTS)
    with pytest.raises(errors.HetalError, match="device"):
        HetalFeatures(sentence_network, device="abacus").fit(TEXTS)
