//! Networks that have a short name.
//!
//! A revision or hash stands here only if its source is known. The hashes of `all-mpnet-base-v2`
//! and `all-MiniLM-L6-v2` are those of the weights that `crates/features/reference/compare.sh`
//! downloads; revision and hash of `vit-base` are those that public repositories name for it, in
//! agreement. A missing entry means that no such source was found.

use serde_json::{Value, json};

/// What a network reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkKind {
    /// Sentences.
    Sentences,
    /// Pictures.
    Pictures,
}

impl NetworkKind {
    fn name(self) -> &'static str {
        match self {
            Self::Sentences => "sentences",
            Self::Pictures => "pictures",
        }
    }
}

/// A network with a short name.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownNetwork {
    /// The short name.
    pub name: &'static str,
    /// `owner/name` on the hub; none where there is no copy that this program reads.
    pub hub: Option<&'static str>,
    /// What it reads.
    pub kind: NetworkKind,
    /// Columns of its features.
    pub columns: usize,
    /// Size of its weights in megabytes.
    pub megabytes: u64,
    /// Licence of its weights, as an SPDX identifier.
    pub licence: &'static str,
    /// The pinned commit.
    pub revision: Option<&'static str>,
    /// SHA-256 of `model.safetensors` at that commit.
    pub sha256: Option<&'static str>,
    /// The files it consists of at that commit.
    pub files: &'static [&'static str],
    /// What it is for.
    pub note: &'static str,
}

const SENTENCE_FILES: &[&str] = &[
    "config.json",
    "tokenizer.json",
    "modules.json",
    "1_Pooling/config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer_config.json",
    "model.safetensors",
];

const PICTURE_FILES: &[&str] = &["config.json", "preprocessor_config.json", "model.safetensors"];

/// All of them.
pub const NETWORKS: [KnownNetwork; 6] = [
    KnownNetwork {
        name: "all-mpnet-base-v2",
        hub: Some("sentence-transformers/all-mpnet-base-v2"),
        kind: NetworkKind::Sentences,
        columns: 768,
        megabytes: 438,
        licence: "Apache-2.0",
        revision: Some("e8c3b32edf5434bc2275fc9bab85f82640a19130"),
        sha256: Some("78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"),
        files: SENTENCE_FILES,
        note: "English sentences; made the features of `hetal demo`",
    },
    KnownNetwork {
        name: "paraphrase-mpnet-base-v2",
        hub: Some("sentence-transformers/paraphrase-mpnet-base-v2"),
        kind: NetworkKind::Sentences,
        columns: 768,
        megabytes: 438,
        licence: "Apache-2.0",
        revision: Some("6cc9279c672dc57f94445ef259b28a1b736fec8f"),
        sha256: None,
        files: SENTENCE_FILES,
        note: "English sentences; the paper's MPNet-Base has its size",
    },
    KnownNetwork {
        name: "all-MiniLM-L6-v2",
        hub: Some("sentence-transformers/all-MiniLM-L6-v2"),
        kind: NetworkKind::Sentences,
        columns: 384,
        megabytes: 91,
        licence: "Apache-2.0",
        revision: Some("1110a243fdf4706b3f48f1d95db1a4f5529b4d41"),
        sha256: Some("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        files: SENTENCE_FILES,
        note: "English sentences, smaller and faster",
    },
    KnownNetwork {
        name: "vit-base",
        hub: Some("google/vit-base-patch16-224-in21k"),
        kind: NetworkKind::Pictures,
        columns: 768,
        megabytes: 346,
        licence: "Apache-2.0",
        revision: Some("b4569560a39a0f1af58e3ddaf17facf20ab919b0"),
        sha256: Some("fd4e1169c7aa6c2dbfa8a6448be13b35abc0ee256190857c90009d12c094619b"),
        files: PICTURE_FILES,
        note: "pictures; the paper's ViT-Base has its size",
    },
    KnownNetwork {
        name: "vit-large",
        hub: Some("google/vit-large-patch32-384"),
        kind: NetworkKind::Pictures,
        columns: 1024,
        megabytes: 1230,
        licence: "Apache-2.0",
        revision: None,
        sha256: None,
        files: PICTURE_FILES,
        note: "pictures; the paper's ViT-Large has its size",
    },
    KnownNetwork {
        name: "efficientnet-lite0",
        hub: None,
        kind: NetworkKind::Pictures,
        columns: 1280,
        megabytes: 19,
        licence: "Apache-2.0",
        revision: None,
        sha256: None,
        files: &["model.safetensors"],
        note: "pictures, small and fast; from a file of your own (docs/features.md)",
    },
];

/// The network of a short name, or of a name on the hub.
pub fn find(name: &str) -> Option<&'static KnownNetwork> {
    NETWORKS.iter().find(|network| network.name == name || network.hub == Some(name))
}

/// The files of a network on the hub at a revision, where they are known.
pub fn files(hub: &str, revision: &str) -> Option<&'static [&'static str]> {
    let here = |network: &&KnownNetwork| network.hub == Some(hub) && network.revision == Some(revision);
    NETWORKS.iter().find(here).map(|network| network.files)
}

/// A line for each network, for `--help`.
pub fn help() -> String {
    let line =
        |network: &KnownNetwork| format!("  {:26} {:>5} columns  {}", network.name, network.columns, network.note);
    let lines: Vec<String> = NETWORKS.iter().map(line).collect();
    format!(
        "Networks with a short name (`hetal extract models` says more):\n{}\n\n\
         Any other network of the kinds that docs/features.md lists can be given as a folder, an .onnx file, or by its name on the hub.",
        lines.join("\n")
    )
}

/// The catalogue for people.
pub fn text() -> String {
    let one = |network: &KnownNetwork| {
        format!(
            "{}\n  reads {}, {} columns, {} MB, {}\n  {}\n  hub       {}\n  revision  {}\n  sha256    {}\n",
            network.name,
            network.kind.name(),
            network.columns,
            network.megabytes,
            network.licence,
            network.note,
            network.hub.unwrap_or("none: give the file"),
            network.revision.unwrap_or("not known here: give --revision"),
            network.sha256.unwrap_or("not known here: give --sha256"),
        )
    };
    NETWORKS.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// The catalogue as JSON.
pub fn json() -> Value {
    let one = |network: &KnownNetwork| {
        json!({
            "name": network.name,
            "hub": network.hub,
            "kind": network.kind.name(),
            "columns": network.columns,
            "megabytes": network.megabytes,
            "licence": network.licence,
            "revision": network.revision,
            "sha256": network.sha256,
            "files": network.files,
            "note": network.note,
        })
    };
    NETWORKS.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_pins_have_their_form() {
        let hexadecimal =
            |text: &str, length| text.len() == length && text.bytes().all(|b| b"0123456789abcdef".contains(&b));
        for network in &NETWORKS {
            assert_eq!(find(network.name), Some(network));
            assert!(network.hub.is_none_or(|hub| find(hub) == Some(network)));
            assert!(network.revision.is_none_or(|revision| hexadecimal(revision, 40)), "{}", network.name);
            assert!(network.sha256.is_none_or(|hash| hexadecimal(hash, 64)), "{}", network.name);
            // A hash belongs to a revision.
            assert!(network.sha256.is_none() || network.revision.is_some(), "{}", network.name);
            assert_eq!(network.files.last(), Some(&"model.safetensors"), "weights come last");
            assert!(help().contains(network.name) && text().contains(network.name));
        }
        assert_eq!(json().as_array().map(Vec::len), Some(NETWORKS.len()));
        assert!(files("google/vit-base-patch16-224-in21k", "main").is_none());
    }
}
