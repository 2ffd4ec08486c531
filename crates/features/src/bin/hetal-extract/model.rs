//! Finds the network that the arguments name: a folder, a short name, or a name on the hub. This
//! runs in the supervisor, which downloads files but does not read them.

use crate::bars;
use crate::error::{Error, Result};
use crate::events::ResolvedNetwork;
use hetal_extract_api::arguments::ExtractArguments;
use hetal_extract_api::catalogue::{self, KnownNetwork};
use hetal_extract_api::protocol::{Encode, HUB_SECRETS};
use hetal_extract_api::sanitize_terminal;
use hetal_features::hub::{self, ADDRESS, DownloadStep, Hub, PinnedModel, SILENCE_TIMEOUT, WEIGHTS};
use indicatif::ProgressBar;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The network that the arguments ask for, downloaded if it must be.
pub fn resolve(name: &str, arguments: &ExtractArguments) -> Result<ResolvedNetwork> {
    let path = Path::new(name);
    let known = catalogue::find(name);
    let pinned = arguments.revision.is_some() || arguments.sha256.is_some();
    // A pin means the hub's network, whatever lies here under that name.
    if !pinned && path.exists() {
        if known.is_some() {
            eprintln!("note: {name} here is used, not the network of that name; ./{name} says so without this note");
        }
        return Ok(ResolvedNetwork { path: path.into(), pin: None });
    }
    let pin = match known {
        Some(network) => pin_of(network, arguments)?,
        None if pinned => {
            let text = |option: &Option<String>| option.clone().unwrap_or_default();
            PinnedModel::new(name, &text(&arguments.revision), &text(&arguments.sha256))?
        }
        None if path.is_relative() && path.components().count() == 2 => {
            let reason = "no such folder; for the model of that name on the hub give --revision and --sha256, see docs/features.md";
            return Err(Error::file(path, reason));
        }
        None if path.components().count() == 1 && path.extension().is_none() => {
            let names: Vec<&str> = catalogue::NETWORKS.iter().map(|network| network.name).collect();
            let reason = format!("no such folder, and no short name of a network: {} are", names.join(", "));
            return Err(Error::file(path, reason));
        }
        // The worker reports what is missing.
        None => return Ok(ResolvedNetwork { path: path.into(), pin: None }),
    };
    let folder = fetch(&pin, arguments.models.as_deref())?;
    Ok(ResolvedNetwork { path: folder.into(), pin: Some(pin) })
}

/// The pin of a network of the catalogue: its own, or the one that was given.
fn pin_of(network: &'static KnownNetwork, arguments: &ExtractArguments) -> Result<PinnedModel> {
    let KnownNetwork { name, hub: Some(hub), .. } = network else {
        return Err(Error::NotOnHub { name: network.name });
    };
    let revision = arguments.revision.as_deref().or(network.revision);
    // A hash of one revision says nothing about another.
    let known_hash = network.sha256.filter(|_| arguments.revision.is_none());
    let hash = arguments.sha256.as_deref().or(known_hash);
    match (revision, hash) {
        (Some(revision), Some(hash)) => Ok(PinnedModel::new(hub, revision, hash)?),
        (revision, _) => Err(Error::NotPinned {
            name,
            hub,
            missing: if revision.is_some() { "SHA-256" } else { "revision and SHA-256" },
            files: network.files.join(", "),
        }),
    }
}

/// Where the network of a classifier is now: at the path that is given, or in the copy of its
/// pinned revision.
pub fn folder_again(request: &Encode) -> Result<Option<OsString>> {
    let model = &request.manifest.model;
    match (&request.network, &model.revision, model.files.get(WEIGHTS)) {
        (None, Some(revision), Some(hash)) => {
            let pin = PinnedModel::new(&model.source, revision, hash)?;
            Ok(Some(fetch(&pin, request.models.as_deref().map(Path::new))?.into()))
        }
        _ => Ok(request.network.clone()),
    }
}

/// The folder of a pinned model: in the cache of Hugging Face's programs, in ours, or downloaded
/// into ours.
fn fetch(pin: &PinnedModel, models: Option<&Path>) -> Result<PathBuf> {
    if models.is_none()
        && let Some(folder) = hub_cache().and_then(|cache| hub::snapshot(&cache, pin))
    {
        return Ok(folder);
    }
    let spinner = bars::spinner("looking for the model");
    let hub = Hub { address: address(), token: token(), cache: cache(models)?, silence_timeout: SILENCE_TIMEOUT };
    let folder = hub.fetch(pin, |step| show(&step, &spinner));
    spinner.finish_and_clear();
    Ok(folder?)
}

fn show(step: &DownloadStep, spinner: &ProgressBar) {
    match step {
        DownloadStep::Waiting(file) => spinner.set_message(format!("waiting for another program that downloads {file}")),
        DownloadStep::Coming { file, done, total } => {
            let total = total.map(|total| format!(" of {}", total >> 20)).unwrap_or_default();
            spinner.set_message(format!("downloading {file}: {}{total} MiB", done >> 20));
        }
        DownloadStep::Without { file, reason } => spinner.suspend(|| {
            eprintln!(
                "note: whether the model has a {file} could not be found out ({}): it is used as an earlier version fetched it",
                sanitize_terminal(reason)
            );
        }),
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn user_cache() -> Option<PathBuf> {
    variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))
}

/// Where the hub is: `HF_ENDPOINT`, or its usual address.
fn address() -> String {
    let given = std::env::var("HF_ENDPOINT").ok().filter(|address| !address.is_empty());
    given.map_or_else(|| ADDRESS.to_owned(), |address| address.trim_end_matches('/').to_owned())
}

/// What the hub is shown.
fn token() -> Option<String> {
    let given = |name: &&str| std::env::var(name).ok().map(|token| token.trim().to_owned());
    HUB_SECRETS.iter().filter_map(given).find(|token| !token.is_empty())
}

/// Where downloaded models are kept: as told, else beside Hugging Face's if `HF_HOME` says where
/// that is, else in the user's cache.
fn cache(models: Option<&Path>) -> Result<PathBuf> {
    let beside = || variable("HF_HOME").map(|home| home.join("hetal"));
    let folder = models.map(Path::to_owned).or_else(beside).or_else(|| Some(user_cache()?.join("hetal/models")));
    folder.ok_or(Error::NoCache)
}

/// Where Hugging Face's own programs keep models.
fn hub_cache() -> Option<PathBuf> {
    let home = || variable("HF_HOME").or_else(|| Some(user_cache()?.join("huggingface")));
    variable("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub")))
}
