//! Writes networks with made-up weights, small or of real size, in the form of real checkpoints.
#![allow(dead_code, reason = "each test program uses its own part")]

use safetensors::tensor::{Dtype, TensorView};
use sha2::{Digest, Sha256};
use std::path::Path;

/// The same numbers as `numbers` of reference/golden.py.
fn numbers(name: &str, count: usize) -> impl Iterator<Item = f32> {
    let digest = Sha256::digest(name.as_bytes());
    let seed = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
    (0..count as u32).map(move |i| {
        let mut u = i.wrapping_mul(0x9E37_79B1).wrapping_add(seed);
        u ^= u >> 16;
        u = u.wrapping_mul(0x85EB_CA6B);
        u ^= u >> 13;
        (f64::from(u) / 2f64.powi(32) - 0.5) as f32
    })
}

/// The same weights as `weights` of reference/golden.py.
fn weights(name: &str, shape: &[usize]) -> Vec<u8> {
    let values = numbers(name, shape.iter().product());
    let scale = 3.4 / (shape[1..].iter().product::<usize>() as f32).sqrt();
    let value = |x: f32| match shape.len() {
        1 if name.ends_with("running_var") => 1.0 + 0.5 * x,
        1 if name.ends_with("weight") => 1.0 + 0.2 * x,
        1 => 0.2 * x,
        _ => x * scale,
    };
    values.flat_map(|x| value(x).to_le_bytes()).collect()
}

/// Writes a checkpoint of tensors with these names and shapes, each name after `prefix`.
pub fn write_checkpoint(path: &Path, prefix: &str, tensors: &[(String, Vec<usize>)]) {
    let values: Vec<Vec<u8>> = tensors.iter().map(|(name, shape)| weights(name, shape)).collect();
    let views = tensors.iter().zip(&values).map(|((name, shape), bytes)| {
        (format!("{prefix}{name}"), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// The sizes of a transformer.
pub struct Size {
    /// Columns between layers.
    pub hidden: usize,
    /// Columns within them.
    pub inner: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Words of a sentence encoder.
    pub words: usize,
    /// Positions of a sentence encoder.
    pub positions: usize,
    /// Sides of a picture and of a patch.
    pub sides: [usize; 2],
}

/// Small enough for quick tests.
pub const SMALL: Size = Size { hidden: 24, inner: 40, layers: 3, heads: 3, words: 16, positions: 20, sides: [32, 8] };
/// The sizes of all-mpnet-base-v2 and vit-base-patch16-224.
pub const BASE: Size =
    Size { hidden: 768, inner: 3072, layers: 12, heads: 12, words: 30_527, positions: 514, sides: [224, 16] };

fn pair(tensors: &mut Vec<(String, Vec<usize>)>, name: &str, shape: &[usize]) {
    tensors.push((format!("{name}.weight"), shape.to_vec()));
    tensors.push((format!("{name}.bias"), shape[..1].to_vec()));
}

fn config(folder: &Path, model_type: &str, size: &Size, more: &str) {
    let Size { hidden, inner, layers, heads, .. } = size;
    let text = format!(
        r#"{{"model_type": "{model_type}", "hidden_size": {hidden}, "intermediate_size": {inner}, "hidden_act": "gelu",
            "num_hidden_layers": {layers}, "num_attention_heads": {heads}, {more}}}"#
    );
    std::fs::write(folder.join("config.json"), text).unwrap();
}

/// The tensors of a small BERT or MPNet.
pub fn sentence_tensors(family: &str) -> Vec<(String, Vec<usize>)> {
    sentence_tensors_of(family, &SMALL)
}

fn sentence_tensors_of(family: &str, size: &Size) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (size.hidden, size.inner);
    let mut t = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![size.words, hidden]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![size.positions, hidden]),
    ];
    pair(&mut t, "embeddings.LayerNorm", &[hidden]);
    let (qkvo, norm) = match family {
        "mpnet" => {
            t.push(("encoder.relative_attention_bias.weight".to_owned(), vec![32, size.heads]));
            (["attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"], "attention.LayerNorm")
        }
        _ => {
            t.push(("embeddings.token_type_embeddings.weight".to_owned(), vec![2, hidden]));
            (
                ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"],
                "attention.output.LayerNorm",
            )
        }
    };
    for layer in 0..size.layers {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        qkvo.iter().for_each(|part| pair(&mut t, &name(part), &[hidden, hidden]));
        pair(&mut t, &name(norm), &[hidden]);
        pair(&mut t, &name("intermediate.dense"), &[inner, hidden]);
        pair(&mut t, &name("output.dense"), &[hidden, inner]);
        pair(&mut t, &name("output.LayerNorm"), &[hidden]);
    }
    t
}

/// A small BERT or MPNet that reads words of tests/golden/tokenizer.json.
pub fn write_sentence_model(folder: &Path, family: &str) {
    write_sentence_model_of(folder, family, &SMALL);
}

/// The same, of any size.
pub fn write_sentence_model_of(folder: &Path, family: &str, size: &Size) {
    let epsilon = if family == "mpnet" { 1e-5 } else { 1e-12 };
    let Size { words, positions, .. } = size;
    let more = format!(
        r#""vocab_size": {words}, "max_position_embeddings": {positions}, "layer_norm_eps": {epsilon}, "pad_token_id": 1,
           "type_vocab_size": 2, "relative_attention_num_buckets": 32"#
    );
    config(folder, family, size, &more);
    std::fs::write(folder.join("tokenizer.json"), include_str!("../golden/tokenizer.json")).unwrap();
    write_checkpoint(&folder.join("model.safetensors"), "", &sentence_tensors_of(family, size));
}

/// A small vision transformer; `prefix` is what its tensors' names begin with.
pub fn write_vit(folder: &Path, prefix: &str) {
    write_vit_of(folder, prefix, &SMALL);
}

/// The same, of any size.
pub fn write_vit_of(folder: &Path, prefix: &str, size: &Size) {
    let (hidden, inner, [side, patch]) = (size.hidden, size.inner, size.sides);
    let more = format!(
        r#""image_size": {side}, "patch_size": {patch}, "layer_norm_eps": 1e-12, "num_channels": 3, "qkv_bias": true"#
    );
    config(folder, "vit", size, &more);
    let mut t = vec![
        ("embeddings.cls_token".to_owned(), vec![1, 1, hidden]),
        ("embeddings.position_embeddings".to_owned(), vec![1, (side / patch).pow(2) + 1, hidden]),
    ];
    pair(&mut t, "embeddings.patch_embeddings.projection", &[hidden, 3, patch, patch]);
    for layer in 0..size.layers {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        for part in ["attention.attention.query", "attention.attention.key", "attention.attention.value"] {
            pair(&mut t, &name(part), &[hidden, hidden]);
        }
        pair(&mut t, &name("attention.output.dense"), &[hidden, hidden]);
        pair(&mut t, &name("intermediate.dense"), &[inner, hidden]);
        pair(&mut t, &name("output.dense"), &[hidden, inner]);
        pair(&mut t, &name("layernorm_before"), &[hidden]);
        pair(&mut t, &name("layernorm_after"), &[hidden]);
    }
    pair(&mut t, "layernorm", &[hidden]);
    write_checkpoint(&folder.join("model.safetensors"), prefix, &t);
}

/// Writes EfficientNet-Lite0 in its real size.
pub fn write_lite0(path: &Path) {
    let mut t = Vec::new();
    let mut conv = |name: &str, norm: &str, shape: &[usize]| {
        t.push((format!("{name}.weight"), shape.to_vec()));
        for part in ["weight", "bias", "running_mean", "running_var"] {
            t.push((format!("{norm}.{part}"), vec![shape[0]]));
        }
    };
    conv("_conv_stem", "_bn0", &[32, 3, 3, 3]);
    let stages =
        [(1, 3, 1, 16), (2, 3, 6, 24), (2, 5, 6, 40), (3, 3, 6, 80), (3, 5, 6, 112), (4, 5, 6, 192), (1, 3, 6, 320)];
    let (mut block, mut channels) = (0, 32);
    for (repeats, size, expansion, out) in stages {
        for _ in 0..repeats {
            let name = |part: &str| format!("_blocks.{block}.{part}");
            let inner = channels * expansion;
            if expansion > 1 {
                conv(&name("_expand_conv"), &name("_bn0"), &[inner, channels, 1, 1]);
            }
            conv(&name("_depthwise_conv"), &name("_bn1"), &[inner, 1, size, size]);
            conv(&name("_project_conv"), &name("_bn2"), &[out, inner, 1, 1]);
            (block, channels) = (block + 1, out);
        }
    }
    conv("_conv_head", "_bn1", &[1280, 320, 1, 1]);
    write_checkpoint(path, "", &t);
}

/// The picture `pattern` of reference/golden.py, as a PNG file.
pub fn write_pattern(path: &Path, width: usize, height: usize) {
    let value = |i: usize| ((i * 37 + i / 7 * 101 + i / (3 * width) * 59) % 256) as u8;
    write_png(path, width, height, &(0..3 * width * height).map(value).collect::<Vec<_>>());
}

/// A PNG file of RGB pixels.
pub fn write_png(path: &Path, width: usize, height: usize, pixels: &[u8]) {
    let file = std::fs::File::create(path).unwrap();
    let mut encoder = png::Encoder::new(file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}
