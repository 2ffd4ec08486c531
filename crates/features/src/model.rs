//! Models: found on disk, recognised by their configuration.

use crate::device::Place;
use crate::manifest::Identity;
use crate::picture::{Picture, PicturePreprocessing};
use crate::sentence::{Family, NOTHING, SentenceModel, SentencePreprocessing, Tokens};
use crate::vision::VisionModel;
use crate::weights::{Weights, sha256};
use crate::{Error, Result, config};
use candle_core::Device;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Files that decide what is done before and after a network.
const BESIDE: &[&str] = &[
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
];

const KNOWN: &str = "mpnet, bert, vit and efficientnet-lite0";

/// What is done to an input before the network and to its output after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preprocessing {
    /// Of sentences.
    Sentence(SentencePreprocessing),
    /// Of pictures.
    Picture(PicturePreprocessing),
}

enum Network {
    Sentence(Box<SentenceModel>),
    Vision(VisionModel),
    #[cfg(feature = "onnx")]
    Onnx(crate::onnx::OnnxModel),
}

/// A loaded network that turns pictures or sentences into feature vectors.
pub struct Extractor {
    network: Network,
    identity: Identity,
    device: Device,
    note: Option<String>,
}

#[derive(Deserialize)]
struct ModelType {
    model_type: String,
}

impl Extractor {
    /// Opens a folder with `config.json` and `model.safetensors`, a safetensors file of
    /// EfficientNet-Lite0, or an `.onnx` file, to be run on the CPU.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_on(path, Place::Cpu)
    }

    /// Opens a network to be run on a place of choice.
    pub fn open_on(path: &Path, place: Place) -> Result<Self> {
        if path.extension().is_some_and(|extension| extension == "onnx") {
            return match place {
                Place::Cuda => Err(Error::file(path, "ONNX models run on the CPU: take --device cpu")),
                Place::Cpu | Place::Auto => open_onnx(path),
            };
        }
        let (device, note) = place.device()?;
        Ok(Self { note, ..Self::built_in(path, &device)? })
    }

    fn built_in(path: &Path, device: &Device) -> Result<Self> {
        if path.is_file() {
            let folder = path.with_file_name("config.json").is_file();
            return match folder && !is_lite0(path, device)? {
                true => Err(Error::file(path, "is a part of a model: give the folder it is in")),
                false => Self::lite0(path, device),
            };
        }
        let configuration = path.join("config.json");
        let lone = path.join("model.safetensors");
        if !configuration.exists() && lone.is_file() && is_lite0(&lone, device)? {
            return Self::lite0(&lone, device);
        }
        let kind: ModelType = config::read(&configuration)?;
        let sentence = |family| Ok(Network::Sentence(Box::new(SentenceModel::open(path, family, device)?)));
        let network: Result<Network> = match kind.model_type.as_str() {
            "mpnet" => sentence(Family::Mpnet),
            "bert" => sentence(Family::Bert),
            "vit" => Ok(Network::Vision(VisionModel::open_vit(path, device)?)),
            "efficientnet-lite0" => Ok(Network::Vision(VisionModel::open_lite0(&lone, device)?)),
            found => Err(Error::Architecture { path: configuration.clone(), found: found.to_owned(), known: KNOWN }),
        };
        let files = files_there(path, &[&["config.json", "model.safetensors"], BESIDE].concat());
        Self::identified(network?, path, &kind.model_type, files, device)
    }

    fn lite0(path: &Path, device: &Device) -> Result<Self> {
        let network = Network::Vision(VisionModel::open_lite0(path, device)?);
        Self::identified(network, path, "efficientnet-lite0", vec![("model.safetensors", path.to_owned())], device)
    }

    fn identified(
        network: Network,
        path: &Path,
        architecture: &str,
        files: Vec<(&str, PathBuf)>,
        device: &Device,
    ) -> Result<Self> {
        let hash = |(name, path): (&str, PathBuf)| Ok((name.to_owned(), sha256(&path)?));
        let files = files.into_iter().map(hash).collect::<Result<_>>()?;
        let (columns, preprocessing) = match &network {
            Network::Sentence(model) => (model.width(), Preprocessing::Sentence(model.reader().preprocessing.clone())),
            Network::Vision(model) => (model.width(), Preprocessing::Picture(model.preprocessing().clone())),
            #[cfg(feature = "onnx")]
            Network::Onnx(model) => (model.width(), model.preprocessing()),
        };
        // Absolute: a classifier is used from other folders than the one its features were made in.
        let source = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        let identity =
            Identity { source, revision: None, architecture: architecture.to_owned(), columns, files, preprocessing };
        Ok(Self { network, identity, device: device.clone(), note: None })
    }

    /// Opens the network a manifest describes, at `path` or where it was then, and refuses any
    /// other.
    pub fn from_manifest(manifest: &crate::Manifest, path: Option<&Path>, place: Place) -> Result<Self> {
        let path = path.unwrap_or(Path::new(&manifest.model.source));
        let mut extractor = Self::open_on(path, place)?;
        if let Some((name, hash)) = extractor.identity.changed(&manifest.model) {
            let reason = format!("{name} is not the one the features were made with (SHA-256 {hash})");
            return Err(Error::file(path, reason));
        }
        if extractor.identity.preprocessing != manifest.model.preprocessing {
            return Err(Error::file(path, "its preprocessing is not the one the features were made with"));
        }
        if extractor.identity.columns != manifest.model.columns {
            let (has, made) = (extractor.identity.columns, manifest.model.columns);
            return Err(Error::file(path, format!("it gives {has} features, {made} were made")));
        }
        // Where it is found again is the manifest's to say; what it is has just been read.
        extractor.identity.source = manifest.model.source.clone();
        extractor.identity.revision = manifest.model.revision.clone();
        Ok(extractor)
    }

    /// Opens the folder of a model of the hub, under the name and revision it has there; other
    /// weights than pinned are refused.
    #[cfg(feature = "hub")]
    pub fn pinned(folder: &Path, pin: &crate::hub::Pin, place: Place) -> Result<Self> {
        let mut extractor = Self::open_on(folder, place)?;
        let weights = crate::hub::WEIGHTS;
        let found = extractor.identity.files.get(weights).map_or("none", String::as_str);
        if let Some(difference) = pin.difference(found) {
            return Err(Error::file(&folder.join(weights), format!("{difference}; remove it and check the pin")));
        }
        extractor.identity.source = pin.name.clone();
        extractor.identity.revision = Some(pin.revision.clone());
        Ok(extractor)
    }

    /// Which network this is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where it runs: `cpu` or `cuda`.
    pub fn device(&self) -> &'static str {
        if self.on_card() { "cuda" } else { "cpu" }
    }

    /// What the user should know before it is run: that it was meant for a card and cannot use one.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    pub(crate) fn on_card(&self) -> bool {
        !self.device.is_cpu()
    }

    /// Whether it reads sentences; otherwise it reads pictures.
    pub fn reads_text(&self) -> bool {
        matches!(self.identity.preprocessing, Preprocessing::Sentence(_))
    }

    /// A feature vector for each text; texts beyond the model's limit lose their end, as in
    /// sentence-transformers.
    pub fn extract_texts(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let tokens: Vec<Tokens> = texts.par_iter().map(|text| self.tokens(text)).collect::<Result<_>>()?;
        match texts.iter().zip(&tokens).find(|(_, tokens)| tokens.ids.is_empty()) {
            Some((text, _)) => Err(Error::item(format!("{text:?}"), NOTHING)),
            None => self.extract_tokens(&tokens, &mut |_| ()),
        }
    }

    /// A feature vector for each text that was read before, of which there must be at least a
    /// token; `progress` hears how many are done.
    pub(crate) fn extract_tokens(&self, texts: &[Tokens], progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<f32>>> {
        let ids: Vec<&[u32]> = texts.iter().map(|tokens| tokens.ids.as_slice()).collect();
        match &self.network {
            Network::Sentence(model) => model.embed(&ids, progress),
            #[cfg(feature = "onnx")]
            Network::Onnx(model) => model.embed_tokens(&ids, progress),
            Network::Vision(_) => Err(Error::Kind { reads: "pictures", holds: "texts" }),
        }
    }

    /// The feature vector of one text.
    pub fn extract_text(&self, text: &str) -> Result<Vec<f32>> {
        Ok(self.extract_texts(&[text])?.pop().unwrap_or_default())
    }

    /// A text as the model reads it, and how much of it that is; what is beyond its limit does not
    /// count.
    pub fn tokens(&self, text: &str) -> Result<Tokens> {
        match &self.network {
            Network::Sentence(model) => model.reader().tokens(text),
            #[cfg(feature = "onnx")]
            Network::Onnx(model) => model.tokens(text),
            Network::Vision(_) => Err(Error::Kind { reads: "pictures", holds: "texts" }),
        }
    }

    /// The picture at the size the network reads, which is all it needs of it.
    pub fn fitted(&self, picture: &Picture) -> Picture {
        match &self.identity.preprocessing {
            Preprocessing::Picture(preprocessing) => preprocessing.fit(picture),
            Preprocessing::Sentence(_) => picture.clone(),
        }
    }

    /// A feature vector for each picture.
    pub fn extract_pictures(&self, pictures: &[Picture]) -> Result<Vec<Vec<f32>>> {
        self.extract_fitted(pictures, &mut |_| ())
    }

    /// The same; `progress` hears how many are done.
    pub(crate) fn extract_fitted(
        &self,
        pictures: &[Picture],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<f32>>> {
        match &self.network {
            Network::Vision(model) => model.embed(pictures, progress),
            #[cfg(feature = "onnx")]
            Network::Onnx(model) => model.embed_pictures(pictures, progress),
            Network::Sentence(_) => Err(Error::Kind { reads: "texts", holds: "pictures" }),
        }
    }

    /// The feature vector of a picture's file.
    pub fn extract_image(&self, path: &Path) -> Result<Vec<f32>> {
        Ok(self.extract_pictures(&[Picture::open(path)?])?.pop().unwrap_or_default())
    }
}

#[cfg(feature = "onnx")]
fn open_onnx(path: &Path) -> Result<Extractor> {
    let network = Network::Onnx(crate::onnx::OnnxModel::open(path)?);
    let mut files = files_there(path.parent().unwrap_or(Path::new("")), BESIDE);
    files.push(("model.onnx", path.to_owned()));
    Extractor::identified(network, path, "onnx", files, &Device::Cpu)
}

#[cfg(not(feature = "onnx"))]
fn open_onnx(path: &Path) -> Result<Extractor> {
    Err(Error::file(path, "this build runs no ONNX models; build with the feature onnx"))
}

/// Those of the named files that are in the folder.
fn files_there<'a>(folder: &Path, names: &[&'a str]) -> Vec<(&'a str, PathBuf)> {
    names.iter().map(|name| (*name, folder.join(name))).filter(|(_, file)| file.is_file()).collect()
}

fn is_lite0(path: &Path, device: &Device) -> Result<bool> {
    Ok(Weights::open(path, "EfficientNet-Lite0", device)?.has("_conv_stem.weight"))
}
