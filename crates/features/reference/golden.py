"""Writes ../tests/golden: what the reference implementations give for small networks whose weights `weights` makes, as the
tests do from the same formula. Run it inside compare.sh's environment:

    FOLDER/venv/bin/python crates/features/reference/golden.py
"""

import hashlib
import json
import math
import pathlib
import tempfile

import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel, ViTConfig, ViTModel

GOLDEN = pathlib.Path(__file__).parent.parent / "tests" / "golden"


def numbers(name, count):
    """`count` numbers in [-1/2, 1/2) that depend on the name only."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    u = (np.arange(count, dtype=np.uint64) * 0x9E3779B1 + seed) % 2**32
    u ^= u >> 16
    u = (u * 0x85EBCA6B) % 2**32
    u ^= u >> 13
    return (u / 2**32 - 0.5).astype(np.float32)


def weights(name, shape):
    """Weights of a size that keeps values of order one through the network."""
    x = numbers(name, math.prod(shape)).reshape(shape)
    if name.endswith("running_var"):
        return 1 + 0.5 * x
    if len(shape) == 1 and name.endswith("weight"):
        return 1 + 0.2 * x
    if len(shape) == 1:
        return 0.2 * x
    return x * np.float32(3.4 / math.sqrt(math.prod(shape[1:])))


def replaced(tensors):
    make = lambda name, shape: torch.from_numpy(np.asarray(weights(name, tuple(shape)), dtype=np.float32))
    return {name: make(name, t.shape) if t.is_floating_point() else t for name, t in tensors.items()}


def filled(model):
    """The model with made weights, by way of a checkpoint: its names are the ones that last."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = pathlib.Path(folder) / "model.safetensors"
        save_file(replaced(load_file(path)), path, metadata={"format": "pt"})
        return type(model).from_pretrained(folder, add_pooling_layer=False).eval()


def pattern(width, height):
    """A picture with edges and gradients."""
    i = np.arange(3 * width * height)
    return Image.fromarray(((i * 37 + i // 7 * 101 + i // (3 * width) * 59) % 256).astype(np.uint8).reshape(height, width, 3))


def write(name, value):
    (GOLDEN / name).write_text(json.dumps(value, indent=None).replace("}, {", "},\n{") + "\n")


def resize():
    cases = []
    for sizes in [(28, 28, 224, 224), (32, 32, 224, 224), (640, 480, 224, 224), (300, 200, 384, 384), (1, 1, 5, 5), (400, 3, 17, 17), (224, 224, 224, 224)]:
        for name, code in (("bilinear", 2), ("bicubic", 3)):
            p = np.asarray(pattern(*sizes[:2]).resize(sizes[2:], resample=code)).reshape(-1).astype(np.int64)
            keys = dict(zip(("width", "height", "to_width", "to_height"), sizes))
            weighted = int((p * (np.arange(p.size) % 997 + 1)).sum())
            cases.append(keys | {"filter": name, "sum": int(p.sum()), "weighted": weighted})
    write("resize.json", cases)


SENTENCES = ["play some jazz", "play play the the of weather jazz in some in of a the a", "the weather in a", "unheard of words"]
SMALL = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3)


@torch.inference_mode()
def sentences():
    tokenizer = Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))
    ids = [tokenizer.encode(sentence).ids for sentence in SENTENCES]
    text = dict(vocab_size=16, max_position_embeddings=20, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    families = {
        "mpnet": filled(MPNetModel(MPNetConfig(**SMALL, **text, layer_norm_eps=1e-5, pad_token_id=1), add_pooling_layer=False)),
        "bert": filled(BertModel(BertConfig(**SMALL, **text, layer_norm_eps=1e-12), add_pooling_layer=False)),
    }
    golden = {"sentences": SENTENCES, "ids": ids}
    for name, model in families.items():
        golden[name] = [model(torch.tensor([i])).last_hidden_state[0].mean(0).tolist() for i in ids]
    write("sentences.json", golden)


@torch.inference_mode()
def pictures():
    golden = {}
    config = ViTConfig(**SMALL, image_size=32, patch_size=8, layer_norm_eps=1e-12)
    vit = filled(ViTModel(config, add_pooling_layer=False))
    inputs = [np.asarray(pattern(*size).resize((32, 32), resample=2), dtype=np.float32) / 255 for size in ((50, 40), (70, 9))]
    inputs = torch.from_numpy(np.stack([(x - 0.5) / 0.5 for x in inputs])).permute(0, 3, 1, 2).contiguous()
    golden["vit"] = vit(inputs).last_hidden_state[:, 0].tolist()
    lite0 = EfficientNet.from_name("efficientnet-lite0").eval()
    lite0.load_state_dict(replaced(lite0.state_dict()))
    x = np.asarray(pattern(50, 40).resize((224, 224), resample=3), dtype=np.float32) / 255
    x = (x - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    features = lite0.extract_features(torch.from_numpy(x).permute(2, 0, 1)[None].contiguous()).mean((2, 3))[0]
    golden["lite0"] = {"every_40th": features[::40].tolist(), "mean": features.mean().item()}
    write("pictures.json", golden)


def small_onnx():
    """A convolution and a rectifier over pictures of 16 x 16, whose map the program averages."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    kernel = numpy_helper.from_array(np.asarray(weights("kernel", (5, 3, 3, 3)), dtype=np.float32), "kernel")
    nodes = [
        helper.make_node("Conv", ["pixels", "kernel"], ["maps"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["maps"], ["features"]),
    ]
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, 16, 16])
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", 5, 8, 8])
    graph = helper.make_graph(nodes, "small", [pixels], [features], [kernel])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, GOLDEN / "small.onnx")
    x = np.asarray(pattern(50, 40).resize((16, 16), resample=2), dtype=np.float32) / 255
    x = (x - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    session = onnxruntime.InferenceSession(str(GOLDEN / "small.onnx"))
    (maps,) = session.run(None, {"pixels": x.transpose(2, 0, 1)[None]})
    write("onnx.json", maps.mean((2, 3))[0].tolist())


def sideways():
    """Red left and blue right, and EXIF that says: turn me by 90 degrees."""
    picture = Image.new("RGB", (16, 8), (200, 30, 30))
    picture.paste((30, 30, 200), (8, 0, 16, 8))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(GOLDEN / "sideways.jpg", quality=90, subsampling=0, exif=exif)


def tokens_onnx():
    """A table of words and a curve, for the tokens of tokenizer.json; the program takes the mean over tokens."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    table = numpy_helper.from_array(np.asarray(weights("table", (16, 6)), dtype=np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["words", "column"], ["masked"]),
        helper.make_node("Tanh", ["masked"], ["last_hidden_state"]),
    ]
    last = numpy_helper.from_array(np.asarray([-1]), "last")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", 6])
    graph = helper.make_graph(nodes, "tokens", inputs, [output], [table, last])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, GOLDEN / "tokens.onnx")
    session = onnxruntime.InferenceSession(str(GOLDEN / "tokens.onnx"))
    # <s> play some jazz </s>
    ids = np.asarray([[0, 4, 5, 6, 2]])
    (states,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    write("tokens.json", states.mean(1)[0].tolist())


GOLDEN.mkdir(parents=True, exist_ok=True)
sideways()
resize()
sentences()
pictures()
small_onnx()
tokens_onnx()
