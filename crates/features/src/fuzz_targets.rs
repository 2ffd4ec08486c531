//! Fuzz targets: the parsers of configurations as functions of bytes. Each returns whether the
//! bytes were accepted. (Data sets are fuzzed as files.)

use crate::manifest::Manifest;
use crate::picture::{PicturePreprocessing, Preprocessor};
use crate::sentence::{Module, PoolingConfig, TransformerConfig, check};
use crate::vision::VitConfig;
use crate::weights::header;
use serde::de::DeserializeOwned;
use std::path::Path;

fn parsed<T: DeserializeOwned, R>(bytes: &[u8], check: impl FnOnce(T) -> crate::Result<R>) -> bool {
    serde_json::from_slice(bytes).is_ok_and(|value| check(value).is_ok())
}

/// `config.json` of BERT or MPNet.
pub fn sentence_config(bytes: &[u8]) -> bool {
    parsed(bytes, |config: TransformerConfig| check(Path::new(""), &config))
}

/// `config.json` of ViT.
pub fn vit_config(bytes: &[u8]) -> bool {
    parsed(bytes, |config: VitConfig| config.check(Path::new("")))
}

/// `preprocessor_config.json`.
pub fn preprocessor(bytes: &[u8]) -> bool {
    parsed(bytes, |found: Preprocessor| PicturePreprocessing::imagenet(224).adjusted(&found, Path::new("")))
}

/// `modules.json`.
pub fn modules(bytes: &[u8]) -> bool {
    parsed(bytes, |modules: Vec<Module>| modules.iter().try_for_each(|module| module.known(Path::new("")).map(drop)))
}

/// `1_Pooling/config.json`.
pub fn pooling(bytes: &[u8]) -> bool {
    parsed(bytes, |config: PoolingConfig| config.pooling(Path::new("")))
}

/// The header of a safetensors file.
pub fn weights(bytes: &[u8]) -> bool {
    header(&mut &*bytes, bytes.len() as u64).is_ok()
}

/// The manifest in a model file.
pub fn manifest(bytes: &[u8]) -> bool {
    parsed(bytes, |value: serde_json::Value| Ok(Manifest::from_model(&value, Path::new(""))?))
}
