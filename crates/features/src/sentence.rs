//! Networks that read sentences: BERT and MPNet, with the tokenizers and poolings of
//! sentence-transformers.

use crate::encoder::{Layer, NormOrder, TransformerEncoder};
use crate::ops::Norm;
use crate::weights::Weights;
use crate::{Error, Result, config, untrusted};
use candle_core::{Device, Tensor};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokenizers::{PostProcessor, Tokenizer};

/// Tokens of a batch on the CPU: enough for efficient products, few enough for the cache.
const BATCH_TOKENS: usize = 1024;

/// Tokens of a batch on a GPU, where starting an operation is expensive.
const GPU_TOKENS: usize = 16 * 1024;

/// Buckets of distances. `bucket` needs four or more, and fewer than 512: there its exact distances
/// would reach 128, from where on all distances share a bucket.
const BUCKETS: std::ops::RangeInclusive<usize> = 4..=256;

/// `config.json` of BERT and MPNet.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TransformerConfig {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub layer_norm_eps: f64,
    pub hidden_act: String,
    #[serde(default)]
    pub pad_token_id: usize,
    #[serde(default = "two")]
    pub type_vocab_size: usize,
    #[serde(default = "thirty_two")]
    pub relative_attention_num_buckets: usize,
    #[serde(default = "absolute")]
    pub position_embedding_type: String,
}

fn two() -> usize {
    2
}

fn thirty_two() -> usize {
    32
}

fn absolute() -> String {
    "absolute".to_owned()
}

/// The two families. They differ in the names of tensors and in positions, and MPNet has scores by
/// distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Family {
    Bert,
    Mpnet,
}

/// How the vectors of the tokens of a sentence are combined into one.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first vector.
    Cls,
    /// The largest value of each column.
    Max,
}

/// The tokens of a text.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// The numbers of its tokens.
    pub(crate) ids: Vec<u32>,
    /// How much of the text the tokens cover.
    pub reading: TextCoverage,
}

/// How much of a text a network reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TextCoverage {
    /// All of it.
    All,
    /// Its beginning: the rest is beyond the limit.
    Beginning,
    /// Nothing: it has no known token.
    Nothing,
}

/// The error of a text without a known token.
pub(crate) const NOTHING: &str = "holds nothing that the model's tokenizer knows";

/// The steps before and after the network, from `modules.json`, `1_Pooling/config.json`,
/// `sentence_bert_config.json` and `tokenizer_config.json`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, Deserialize)]
pub struct SentencePreprocessing {
    /// How the vectors of tokens are combined.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub normalise: bool,
    /// The most tokens of a text; the rest is left out, as in sentence-transformers.
    pub max_tokens: usize,
    /// Whether texts are converted to lower case before the tokenizer reads them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lower_case: bool,
}

/// A sentence encoder.
pub struct SentenceModel {
    words: Tensor,
    positions: Tensor,
    embedding_norm: Norm,
    encoder: TransformerEncoder,
    reader: SentenceReader,
    width: usize,
}

/// The tokenizer and the pooling of a network for sentences.
pub(crate) struct SentenceReader {
    path: PathBuf,
    tokenizer: Tokenizer,
    pub preprocessing: SentencePreprocessing,
}

impl SentenceReader {
    /// Opens the files of a folder. The network reads at most `limit` tokens.
    pub fn open(folder: &Path, limit: usize) -> Result<Self> {
        let preprocessing = SentencePreprocessing::read(folder, limit)?;
        let path = folder.join("tokenizer.json");
        Ok(Self { tokenizer: tokenizer(&path, preprocessing.max_tokens)?, path, preprocessing })
    }

    /// The tokens of a text.
    pub fn tokens(&self, text: &str) -> Result<Tokens> {
        let text = if self.preprocessing.lower_case { Cow::from(text.to_lowercase()) } else { Cow::from(text) };
        let encode = || self.tokenizer.encode(&*text, true).map_err(|e| Error::Tokenizer(e.to_string()));
        let encoding = untrusted::catch_panics(&self.path, encode)?;
        let reading = match (encoding.get_ids().is_empty(), encoding.get_overflowing().is_empty()) {
            (true, _) => TextCoverage::Nothing,
            (false, true) => TextCoverage::All,
            (false, false) => TextCoverage::Beginning,
        };
        Ok(Tokens { ids: encoding.get_ids().to_vec(), reading })
    }
}

impl SentenceModel {
    /// Loads a network from a folder with `config.json`, `model.safetensors`, `tokenizer.json` and
    /// the files of sentence-transformers.
    pub(crate) fn open(folder: &Path, family: Family, device: &Device) -> Result<Self> {
        let path = folder.join("config.json");
        let c: TransformerConfig = config::read(&path)?;
        check(&path, &c)?;
        let weights = open_weights(folder, family, device)?;
        let names = Names(family);
        let words = weights.tensor("embeddings.word_embeddings.weight", &[c.vocab_size, c.hidden_size])?;
        let embedding_norm = weights.norm("embeddings.LayerNorm", c.hidden_size, c.layer_norm_eps)?;
        let positions = positions(&weights, family, &c)?;
        let limit = positions.dim(0)?;
        let layers = (0..c.num_hidden_layers).map(|i| names.layer(&weights, &c, i)).collect::<Result<_>>()?;
        let distance = match family {
            Family::Bert => None,
            Family::Mpnet => Some(scores_by_distance(&weights, &c, limit)?),
        };
        let encoder = TransformerEncoder { layers, heads: c.num_attention_heads, order: NormOrder::After, distance };
        let reader = SentenceReader::open(folder, limit)?;
        let known = reader.tokenizer.get_vocab_size(true);
        if known > c.vocab_size {
            let reason = format!("has {known} tokens, but the model {}; get both files of one network", c.vocab_size);
            return Err(Error::file(&folder.join("tokenizer.json"), reason));
        }
        Ok(Self { words, positions, embedding_norm, encoder, reader, width: c.hidden_size })
    }

    /// Columns of a feature vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Its tokenizer and pooling.
    pub(crate) fn reader(&self) -> &SentenceReader {
        &self.reader
    }

    /// Computes a feature vector for each text of at least one token. `progress` is called with the
    /// number of finished texts.
    pub(crate) fn embed(&self, ids: &[&[u32]], progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<f32>>> {
        // Texts of equal length go through the network together.
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|&i| ids[i].len());
        let most = if self.words.device().is_cpu() { BATCH_TOKENS } else { GPU_TOKENS };
        let mut vectors = vec![Vec::new(); ids.len()];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let mut tokens = 0;
            let fits = |&&i: &&usize| {
                tokens += ids[i].len();
                tokens <= most
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (batch, later) = rest.split_at(count);
            let sequences: Vec<&[u32]> = batch.iter().map(|&i| ids[i]).collect();
            for (&i, vector) in batch.iter().zip(self.forward(&sequences)?) {
                vectors[i] = vector;
            }
            rest = later;
            progress(ids.len() - rest.len());
        }
        Ok(vectors)
    }

    /// The pooled vectors of token sequences.
    pub(crate) fn forward(&self, sequences: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let device = self.words.device();
        let lengths: Vec<usize> = sequences.iter().map(|ids| ids.len()).collect();
        let places: Vec<u32> = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        let rows = places.len();
        let words = self.words.index_select(&Tensor::from_vec(sequences.concat(), rows, device)?, 0)?;
        let positions = self.positions.index_select(&Tensor::from_vec(places, rows, device)?, 0)?;
        let x = self.embedding_norm.forward(&(words + positions)?)?;
        let x = self.encoder.forward(x, &lengths)?.flatten_all()?.to_vec1::<f32>()?;
        let mut rest = x.as_slice();
        let mut vectors = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (tokens, later) = rest.split_at(length * self.width);
            vectors.push(self.reader.preprocessing.pool(tokens, self.width));
            rest = later;
        }
        Ok(vectors)
    }
}

pub(crate) fn check(path: &Path, c: &TransformerConfig) -> Result<()> {
    if c.hidden_act != "gelu" {
        return Err(Error::file(
            path,
            format!("hidden_act is {}, must be gelu; use another network, or an .onnx file", c.hidden_act),
        ));
    }
    if c.position_embedding_type != "absolute" {
        return Err(Error::file(
            path,
            format!("position_embedding_type is {}, must be absolute; use another network", c.position_embedding_type),
        ));
    }
    config::check_sizes(
        path,
        &[
            ("hidden_size", c.hidden_size, config::COLUMNS),
            ("intermediate_size", c.intermediate_size, config::COLUMNS),
            ("num_hidden_layers", c.num_hidden_layers, config::LAYERS),
            ("vocab_size", c.vocab_size, config::WORDS),
            ("max_position_embeddings", c.max_position_embeddings, config::TOKENS),
            ("type_vocab_size", c.type_vocab_size, config::WORDS),
            ("relative_attention_num_buckets", c.relative_attention_num_buckets, BUCKETS),
        ],
    )?;
    config::check_epsilon(path, c.layer_norm_eps)?;
    config::check_heads(path, c.hidden_size, c.num_attention_heads)
}

fn open_weights(folder: &Path, family: Family, device: &Device) -> Result<Weights> {
    let architecture = match family {
        Family::Bert => "BERT",
        Family::Mpnet => "MPNet",
    };
    let weights = Weights::open(&folder.join("model.safetensors"), architecture, device)?;
    weights.with_prefix(&["", "bert.", "mpnet.", "0.auto_model."], "embeddings.word_embeddings.weight")
}

/// The position embeddings from the first position on. BERT's embedding of the first segment is
/// added.
fn positions(weights: &Weights, family: Family, c: &TransformerConfig) -> Result<Tensor> {
    let name = "embeddings.position_embeddings.weight";
    let table = weights.tensor(name, &[c.max_position_embeddings, c.hidden_size])?;
    match family {
        Family::Bert => {
            let segments = "embeddings.token_type_embeddings.weight";
            let segments = weights.tensor(segments, &[c.type_vocab_size, c.hidden_size])?;
            Ok(table.broadcast_add(&segments.get(0)?)?)
        }
        // Positions are counted from the one after the padding token.
        Family::Mpnet => {
            let first = c.pad_token_id.saturating_add(1).min(c.max_position_embeddings);
            Ok(table.narrow(0, first, c.max_position_embeddings - first)?)
        }
    }
}

/// For each head, the scores of all distances from -(limit - 1) to limit - 1 of the key from the
/// query.
fn scores_by_distance(weights: &Weights, c: &TransformerConfig, limit: usize) -> Result<Tensor> {
    let shape = [c.relative_attention_num_buckets, c.num_attention_heads];
    let table = weights.tensor("encoder.relative_attention_bias.weight", &shape)?;
    let reach = limit as i64 - 1;
    let buckets: Vec<u32> = (-reach..=reach).map(|d| bucket(d, shape[0] as i64) as u32).collect();
    let count = buckets.len();
    let picked = table.index_select(&Tensor::from_vec(buckets, count, weights.device())?, 0)?;
    Ok(picked.t()?.contiguous()?)
}

/// The bucket of a distance. Half of the buckets are for keys after the query. In each half, the
/// first half of the buckets hold one distance each. The others hold ranges that grow by a constant
/// factor up to distance 128, the last one all distances beyond.
fn bucket(distance: i64, buckets: i64) -> i64 {
    let half = buckets / 2;
    let exact = half / 2;
    let far = distance.abs();
    let within = if far < exact {
        far
    } else {
        // In single precision like the reference: the rounding decides at the borders.
        let steps = (far as f32 / exact as f32).ln() / (128.0 / exact as f64).ln() as f32 * (half - exact) as f32;
        (exact + steps as i64).min(half - 1)
    };
    within + if distance > 0 { half } else { 0 }
}

/// The names of tensors.
struct Names(Family);

impl Names {
    fn layer(&self, weights: &Weights, c: &TransformerConfig, index: usize) -> Result<Layer> {
        let name = |part: &str| format!("encoder.layer.{index}.{part}");
        let (qkv, out, norm) = match self.0 {
            Family::Bert => (
                ["attention.self.query", "attention.self.key", "attention.self.value"],
                "attention.output.dense",
                "attention.output.LayerNorm",
            ),
            Family::Mpnet => (
                ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
                "attention.attn.o",
                "attention.LayerNorm",
            ),
        };
        let (hidden, inner) = (c.hidden_size, c.intermediate_size);
        Ok(Layer {
            qkv: weights.stacked(qkv.map(name), hidden, hidden)?,
            out: weights.linear(&name(out), hidden, hidden)?,
            attention_norm: weights.norm(&name(norm), hidden, c.layer_norm_eps)?,
            up: weights.linear(&name("intermediate.dense"), inner, hidden)?,
            down: weights.linear(&name("output.dense"), hidden, inner)?,
            network_norm: weights.norm(&name("output.LayerNorm"), hidden, c.layer_norm_eps)?,
        })
    }
}

fn tokenizer(path: &Path, max_tokens: usize) -> Result<Tokenizer> {
    let bytes = config::read_bytes(path)?.ok_or_else(|| Error::NoWeights { path: path.to_owned() })?;
    // Checked on its own first, because this error says where in the file it is.
    config::parse::<serde::de::IgnoredAny>(path, &bytes)?;
    let bad = |e: tokenizers::Error| Error::file(path, format!("is no tokenizer that can be used: {e}; get it again"));
    let mut tokenizer = untrusted::catch_panics(path, || Tokenizer::from_bytes(&bytes).map_err(bad))?;
    // The file may ask for padding; sequences are never padded here.
    tokenizer.with_padding(None);
    let marks = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
    if max_tokens <= marks {
        let reason =
            format!("adds {marks} tokens to every text, but the model reads {max_tokens} in all; use another network");
        return Err(Error::file(path, reason));
    }
    let truncation = tokenizers::TruncationParams { max_length: max_tokens, ..Default::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(bad)?;
    Ok(tokenizer)
}

#[derive(Deserialize)]
pub(crate) struct Module {
    #[serde(rename = "type")]
    kind: String,
    path: String,
}

/// A module of sentence-transformers.
pub(crate) enum ModuleKind {
    Encode,
    Pool,
    Normalise,
}

impl Module {
    pub(crate) fn known(&self, path: &Path) -> Result<ModuleKind> {
        match self.kind.rsplit('.').next() {
            Some("Transformer") => Ok(ModuleKind::Encode),
            Some("Pooling") => Ok(ModuleKind::Pool),
            Some("Normalize") => Ok(ModuleKind::Normalise),
            _ => Err(Error::file(
                path,
                format!("module {} is not supported; use another network, or an .onnx file", self.kind),
            )),
        }
    }
}

/// `1_Pooling/config.json`: `pooling_mode`, or a switch for each mode before sentence-transformers
/// 6.
#[derive(Deserialize)]
pub(crate) struct PoolingConfig(serde_json::Map<String, Value>);

/// The switches and their modes.
const SWITCHES: [(&str, &str); 6] = [
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ("pooling_mode_lasttoken", "lasttoken"),
];

/// `sentence_bert_config.json`.
#[derive(Default, Deserialize)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

/// `tokenizer_config.json`, where sentence-transformers 6 keeps the limit. No limit is a number of
/// 30 digits.
#[derive(Default, Deserialize)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
}

/// `config_sentence_transformers.json`.
#[derive(Default, Deserialize)]
struct PromptConfig {
    default_prompt_name: Option<String>,
    prompts: Option<BTreeMap<String, String>>,
}

impl PromptConfig {
    /// The prompt before every text, if there is one.
    fn prompt(&self) -> Option<&String> {
        let prompt = self.prompts.as_ref()?.get(self.default_prompt_name.as_ref()?)?;
        Some(prompt).filter(|prompt| !prompt.is_empty())
    }
}

impl SentencePreprocessing {
    /// Reads the files of a folder. Without them, features are the mean of all tokens.
    fn read(folder: &Path, limit: usize) -> Result<Self> {
        let sentence: SentenceConfig = config::read_or_default(&folder.join("sentence_bert_config.json"))?;
        let tokenizer: TokenizerConfig = config::read_or_default(&folder.join("tokenizer_config.json"))?;
        let path = folder.join("config_sentence_transformers.json");
        if let Some(prompt) = config::read_or_default::<PromptConfig>(&path)?.prompt() {
            return Err(Error::file(
                &path,
                format!("puts {prompt:?} before every text, which is not supported; use another network"),
            ));
        }
        let named = sentence.max_seq_length.or(tokenizer.model_max_length.map(|most| most as usize));
        let max_tokens = named.unwrap_or(limit).min(limit);
        let mut found =
            Self { pooling: Pooling::Mean, normalise: false, max_tokens, lower_case: sentence.do_lower_case };
        let path = folder.join("modules.json");
        for module in config::read_if_there::<Vec<Module>>(&path)?.unwrap_or_default() {
            match module.known(&path)? {
                ModuleKind::Encode => {}
                ModuleKind::Pool => {
                    let path = folder.join(module.path).join("config.json");
                    found.pooling = config::read::<PoolingConfig>(&path)?.pooling(&path)?;
                }
                ModuleKind::Normalise => found.normalise = true,
            }
        }
        Ok(found)
    }

    /// Combines the vectors of the tokens of a sentence.
    pub(crate) fn pool(&self, tokens: &[f32], width: usize) -> Vec<f32> {
        let mut vector = tokens[..width].to_vec();
        let fold = |vector: &mut Vec<f32>, step: fn(f32, f32) -> f32| {
            for token in tokens.chunks_exact(width).skip(1) {
                vector.iter_mut().zip(token).for_each(|(x, &y)| *x = step(*x, y));
            }
        };
        match self.pooling {
            Pooling::Cls => {}
            Pooling::Max => fold(&mut vector, f32::max),
            Pooling::Mean => {
                fold(&mut vector, |x, y| x + y);
                let count = (tokens.len() / width) as f32;
                vector.iter_mut().for_each(|x| *x /= count);
            }
        }
        self.finish(vector)
    }

    /// The steps after pooling.
    pub(crate) fn finish(&self, mut vector: Vec<f32>) -> Vec<f32> {
        if self.normalise {
            let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
            vector.iter_mut().for_each(|x| *x /= length);
        }
        vector
    }
}

impl PoolingConfig {
    pub(crate) fn pooling(&self, path: &Path) -> Result<Pooling> {
        let on = |switch: &str| self.0.get(switch) == Some(&Value::Bool(true));
        let modes: Vec<&str> = match self.0.get("pooling_mode") {
            Some(Value::String(mode)) => vec![mode],
            Some(Value::Array(modes)) => modes.iter().map(|mode| mode.as_str().unwrap_or("?")).collect(),
            _ => SWITCHES.iter().filter(|(switch, _)| on(switch)).map(|&(_, mode)| mode).collect(),
        };
        match modes[..] {
            ["mean"] => Ok(Pooling::Mean),
            ["cls"] => Ok(Pooling::Cls),
            ["max"] => Ok(Pooling::Max),
            _ => {
                let asked = if modes.is_empty() { "none".to_owned() } else { modes.join(" and ") };
                Err(Error::file(
                    path,
                    format!("asks for the pooling {asked}, must be one of mean, cls and max; use another network"),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_the_references() {
        // From transformers' MPNetEncoder.relative_position_bucket with 32 buckets.
        let by_hand =
            [(0, 0), (-1, 1), (1, 17), (-7, 7), (-8, 8), (8, 24), (-16, 10), (-64, 14), (-127, 15), (500, 31)];
        by_hand.iter().for_each(|&(distance, expected)| assert_eq!(bucket(distance, 32), expected, "{distance}"));
    }
}
