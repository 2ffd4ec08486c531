//! Networks on disk: recognised by their configuration, opened, and run on texts or pictures.

use crate::device::DeviceChoice;
use crate::manifest::NetworkIdentity;
use crate::picture::{Picture, PicturePreprocessing};
use crate::sentence::{Family, NOTHING, SentenceModel, SentencePreprocessing, Tokens};
use crate::vision::VisionModel;
use crate::weights::{Weights, sha256};
use crate::{Error, Result, config};
use candle_core::Device;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Files that say how inputs and outputs of a network are processed.
const PROCESSING_FILES: &[&str] = &[
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
];

const KNOWN: &str = "mpnet, bert, vit and efficientnet-lite0";

/// How an input is prepared for the network and its output is processed.
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
    identity: NetworkIdentity,
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
        Self::open_on(path, DeviceChoice::Cpu)
    }

    /// Opens a network to be run on the chosen device.
    pub fn open_on(path: &Path, device: DeviceChoice) -> Result<Self> {
        if path.extension().is_some_and(|extension| extension == "onnx") {
            return match device {
                DeviceChoice::Cuda => {
                    Err(Error::file(path, "is an ONNX model, and those run on the CPU only: use --device cpu"))
                }
                DeviceChoice::Cpu | DeviceChoice::Auto => open_onnx(path),
            };
        }
        let (device, note) = device.open()?;
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
        let files = files_there(path, &[&["config.json", "model.safetensors"], PROCESSING_FILES].concat());
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
        // An absolute path, because a classifier may be used from another folder.
        let source = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        let identity = NetworkIdentity {
            source,
            revision: None,
            architecture: architecture.to_owned(),
            columns,
            files,
            preprocessing,
        };
        Ok(Self { network, identity, device: device.clone(), note: None })
    }

    /// Opens the network that a manifest describes, at `path` or at its recorded place. Any other
    /// network is an error.
    pub fn from_manifest(manifest: &crate::Manifest, path: Option<&Path>, device: DeviceChoice) -> Result<Self> {
        let path = path.unwrap_or(Path::new(&manifest.model.source));
        let mut extractor = Self::open_on(path, device)?;
        if let Some((name, hash)) = extractor.identity.changed(&manifest.model) {
            let reason = format!(
                "{name} is not the file that the features were made with (SHA-256 {hash}); give that network with --network"
            );
            return Err(Error::file(path, reason));
        }
        if extractor.identity.preprocessing != manifest.model.preprocessing {
            return Err(Error::file(
                path,
                "its preprocessing is not the one that the features were made with; give that network with --network",
            ));
        }
        if extractor.identity.columns != manifest.model.columns {
            let (has, made) = (extractor.identity.columns, manifest.model.columns);
            return Err(Error::file(
                path,
                format!(
                    "computes {has} features, but the manifest says {made}; give the network of the manifest with --network"
                ),
            ));
        }
        // The place is the one that the manifest names; the content has just been compared.
        extractor.identity.source = manifest.model.source.clone();
        extractor.identity.revision = manifest.model.revision.clone();
        Ok(extractor)
    }

    /// Opens the folder of a model from the hub, under its name and revision there. Weights that
    /// differ from the pinned ones are an error.
    #[cfg(feature = "hub")]
    pub fn pinned(folder: &Path, pin: &crate::hub::PinnedModel, device: DeviceChoice) -> Result<Self> {
        let mut extractor = Self::open_on(folder, device)?;
        let weights = crate::hub::WEIGHTS;
        let found = extractor.identity.files.get(weights).map_or("none", String::as_str);
        if let Some(difference) = pin.difference(found) {
            return Err(Error::file(
                &folder.join(weights),
                format!("{difference}; remove the file and check --revision and --sha256"),
            ));
        }
        extractor.identity.source = pin.name.clone();
        extractor.identity.revision = Some(pin.revision.clone());
        Ok(extractor)
    }

    /// Which network this is.
    pub fn identity(&self) -> &NetworkIdentity {
        &self.identity
    }

    /// Where it runs: `cpu` or `cuda`.
    pub fn device(&self) -> &'static str {
        if self.on_gpu() { "cuda" } else { "cpu" }
    }

    /// A note for the user: why the network does not run on a GPU.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    pub(crate) fn on_gpu(&self) -> bool {
        !self.device.is_cpu()
    }

    /// Whether it reads sentences; otherwise it reads pictures.
    pub fn reads_text(&self) -> bool {
        matches!(self.identity.preprocessing, Preprocessing::Sentence(_))
    }

    /// Computes a feature vector for each text. The end of a text beyond the model's limit is left
    /// out, as in sentence-transformers.
    pub fn extract_texts(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let tokens: Vec<Tokens> = texts.par_iter().map(|text| self.tokens(text)).collect::<Result<_>>()?;
        match texts.iter().zip(&tokens).find(|(_, tokens)| tokens.ids.is_empty()) {
            Some((text, _)) => Err(Error::item(format!("{text:?}"), NOTHING)),
            None => self.extract_tokens(&tokens, &mut |_| ()),
        }
    }

    /// Computes a feature vector for each tokenized text, of at least one token. `progress` is
    /// called with the number of finished texts.
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

    /// The tokens of a text, up to the model's limit, and whether that is all of the text.
    pub fn tokens(&self, text: &str) -> Result<Tokens> {
        match &self.network {
            Network::Sentence(model) => model.reader().tokens(text),
            #[cfg(feature = "onnx")]
            Network::Onnx(model) => model.tokens(text),
            Network::Vision(_) => Err(Error::Kind { reads: "pictures", holds: "texts" }),
        }
    }

    /// Resizes a picture to the size that the network reads.
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

    /// Computes a feature vector for each picture. `progress` is called with the number of finished
    /// pictures.
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
    let model = crate::onnx::OnnxModel::open(path)?;
    // Weights may lie in files beside the model: they are a part of its identity.
    let external: Vec<(String, PathBuf)> = model
        .external_files()
        .map(|file| (format!("model.onnx: {}", file.file_name().unwrap_or_default().display()), file.clone()))
        .collect();
    let mut files = files_there(path.parent().unwrap_or(Path::new("")), PROCESSING_FILES);
    files.push(("model.onnx", path.to_owned()));
    files.extend(external.iter().map(|(name, file)| (name.as_str(), file.clone())));
    Extractor::identified(Network::Onnx(model), path, "onnx", files, &Device::Cpu)
}

#[cfg(not(feature = "onnx"))]
fn open_onnx(path: &Path) -> Result<Extractor> {
    Err(Error::file(path, "is an ONNX model, which this build cannot run; build hetal-features with the feature onnx"))
}

/// The named files that exist in the folder.
fn files_there<'a>(folder: &Path, names: &[&'a str]) -> Vec<(&'a str, PathBuf)> {
    names.iter().map(|name| (*name, folder.join(name))).filter(|(_, file)| file.is_file()).collect()
}

fn is_lite0(path: &Path, device: &Device) -> Result<bool> {
    Ok(Weights::open(path, "EfficientNet-Lite0", device)?.has("_conv_stem.weight"))
}
