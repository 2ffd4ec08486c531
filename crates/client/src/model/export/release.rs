//! The release of a model: its noise, what it costs, and the budget of its key.

use super::table::{ReleaseTable, measured};
use super::weight_noise::DecryptedRows;
use super::{Published, ReleasedAccuracy, RowPreparation};
use crate::project::ReleaseBudget;
use crate::{Error, Model, Project, Result, project};
use hetal_keys::locked_file::FileSealer;
use hetal_keys::{Error as KeysError, Private, Release, ReleasePolicy};
use hetal_learn::Matrix;
use hetal_ring::sampler::OsSeeds;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The models that may be published under a secret key, by default.
pub const MODELS: u64 = 1;
/// The bits of security of a release, by default: what it reveals raises the chances of an attack
/// on the secret key by at most 2 to the minus this. In the usual count, which squares the
/// advantage, these are 30 bits.
pub const SECURITY: u32 = 15;
/// The points of accuracy that a release may lose without being asked.
pub const TOLERATED_LOSS: f64 = 0.5;
/// The standard deviation that a release may add to a logit of the longest training row, where its
/// accuracy cannot be measured.
const LOGIT_ERROR: f64 = 2.0;

/// How many models may be published under a secret key, and at which security. The first export
/// fixes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseLimits {
    /// Models of the size of the first one.
    pub models: u64,
    /// Bits of security.
    pub security: u32,
}

impl Default for ReleaseLimits {
    fn default() -> Self {
        Self { models: MODELS, security: SECURITY }
    }
}

/// Options of an export.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportOptions {
    /// The limits; by default those that the first export fixed, or else the defaults.
    pub limits: Option<ReleaseLimits>,
    /// Whether the release may lose more than [`TOLERATED_LOSS`].
    pub accept_loss: bool,
}

impl ExportOptions {
    /// Options with given limits.
    pub fn limited(models: u64, security: u32) -> Self {
        Self { limits: Some(ReleaseLimits { models, security }), accept_loss: false }
    }
}

/// What an export reports before anything is fixed for the key.
#[derive(Clone, Copy, Debug)]
pub enum ExportEvent<'a> {
    /// A repetition of the training, on plain numbers, ended.
    Trial {
        /// Ended repetitions.
        done: usize,
        /// All of them.
        total: usize,
    },
    /// What each security costs.
    Table(&'a ReleaseTable),
}

/// The estimate of a model's noise, kept beside the model because it takes long.
#[derive(Serialize, Deserialize)]
struct StoredEstimate {
    /// BLAKE3 hash of the exact weights.
    source: String,
    /// The bound on the 2-norm of their noise.
    bound: f64,
}

/// Publishes a model. The first call adds noise and counts the released numbers; later calls return
/// the same numbers.
pub fn publish(
    project: &mut Project,
    model: &Model,
    options: &ExportOptions,
    on_progress: &mut (dyn FnMut(ExportEvent<'_>) + Send),
) -> Result<(Published, PathBuf)> {
    let path = project.model(&model.name)?.with_extension("released");
    let source = fingerprint(model);
    if let Some(published) = project::read::<Published>(&path)?
        && published.source == source
    {
        let is_current = model.training.key_id == project.settings().key_id;
        match project.settings().released.filter(|_| is_current) {
            Some(state) => require_same(options.limits, model, state)?,
            None => require_security(options.limits, model, published.security)?,
        }
        let rows = RowPreparation::of(model);
        return Ok((Published { class_type: model.class_type, rows, ..published }, path));
    }
    // The budget belongs to one key, so a model of another key must not be counted with it.
    if model.training.key_id.is_none() || model.training.key_id != project.settings().key_id {
        let help = "export it in a project that has its key, or train it again";
        return Err(Error::OtherKeyModel { model: model.name.clone(), help });
    }
    project.require_home()?;
    if let Some(state) = project.settings().released {
        let wanted = numbers_of(model);
        state.left.checked_sub(wanted).ok_or(hetal_keys::Error::Exhausted { wanted, left: state.left })?;
        require_same(options.limits, model, state)?;
    }
    let plan = ReleasePlan::new(project, model, options.limits, &source, on_progress)?;
    let accuracy = plan.require_accuracy(options, on_progress)?;
    let published = plan.release(project, model, source, accuracy)?;
    project::write(&path, &published)?;
    Ok((published, path))
}

/// A release that is about to be made.
struct ReleasePlan {
    /// The weights for normalised features.
    weights: Matrix,
    /// The budget before the release. A key without one gets this one.
    budget: ReleaseBudget,
    /// Whether the release would change logits by too much is found from accuracies, where they can
    /// be measured, or else from the deviation of a weight.
    judged: Judged,
}

enum Judged {
    ByAccuracy { table: ReleaseTable, rows: Matrix, labels: Vec<usize> },
    ByDeviation { largest: f64 },
}

impl ReleasePlan {
    fn new(
        project: &mut Project,
        model: &Model,
        limits: Option<ReleaseLimits>,
        source: &str,
        on_progress: &mut (dyn FnMut(ExportEvent<'_>) + Send),
    ) -> Result<Self> {
        let weights = model.normalisation.unfold(&model.matrix())?;
        let numbers = numbers_of(model);
        let fixed = project.settings().released;
        let ReleaseLimits { models, security } = limits.unwrap_or_default();
        let rows = model.history.as_ref().map(|history| DecryptedRows::open(project, model, history)).transpose()?;
        let noise = match &rows {
            Some(rows) => estimated(project, model, rows, source, on_progress)? / libm::sqrt(numbers as f64),
            None => model.noise.ok_or(Error::NoiseUnknown)?,
        };
        let budget = match fixed {
            Some(state) if noise > state.noise => return Err(Error::Noisier { noise, released: state.noise }),
            Some(state) => state,
            None => {
                let all = models.max(1).checked_mul(numbers).ok_or(Error::TooManyModels { models, numbers })?;
                ReleaseBudget { noise: room_for(noise, models), numbers: all, security, left: all }
            }
        };
        let judged = match (&rows, &model.history) {
            (Some(rows), Some(history)) => {
                let bound = budget.noise * libm::sqrt(numbers as f64);
                let (rows, labels) = (rows.validation()?, history.labels.clone());
                let table = ReleaseTable::new(&weights, &rows, &labels, bound, budget.numbers / numbers)?;
                Judged::ByAccuracy { table, rows, labels }
            }
            _ => Judged::ByDeviation { largest: LOGIT_ERROR / model.normalisation.row_norm().max(1.0) },
        };
        Ok(Self { weights, budget, judged })
    }

    /// Refuses a release that loses more accuracy than is tolerated. Returns the accuracy of the
    /// private model.
    fn require_accuracy(
        &self,
        options: &ExportOptions,
        on_progress: &mut (dyn FnMut(ExportEvent<'_>) + Send),
    ) -> Result<Option<f64>> {
        let Judged::ByAccuracy { table, rows, labels } = &self.judged else { return Ok(None) };
        on_progress(ExportEvent::Table(table));
        let line = table.line(self.budget.security, &self.weights, rows, labels)?;
        if table.loss(&line) > TOLERATED_LOSS && !options.accept_loss {
            return Err(Error::AccuracyLost {
                security: self.budget.security,
                private: table.private_accuracy,
                released: line.accuracy,
                help: if let Some(state) = table.highest(TOLERATED_LOSS) {
                    format!("with `--models {} --security {state}` it keeps its accuracy", table.models)
                } else {
                    "no security of the table keeps its accuracy".to_owned()
                },
            });
        }
        Ok(Some(table.private_accuracy))
    }

    /// Adds the noise and counts the numbers.
    fn release(&self, project: &mut Project, model: &Model, source: String, private: Option<f64>) -> Result<Published> {
        let ReleaseBudget { noise, numbers, security, left } = self.budget;
        let wanted = numbers_of(model);
        let left = left.checked_sub(wanted).ok_or(hetal_keys::Error::Exhausted { wanted, left })?;
        let error = match &self.judged {
            Judged::ByAccuracy { .. } => f64::INFINITY,
            Judged::ByDeviation { largest } => *largest,
        };
        let mut release = Release::new(ReleasePolicy { noise, numbers, security, error })?;
        let values = release.publish(&Private::new(self.weights.values().to_vec()), &mut OsSeeds)?;
        // The budget is reduced before the numbers are written, so that a kill cannot make a
        // release free.
        project.update(|settings| settings.released = Some(ReleaseBudget { left, ..self.budget }))?;
        let released = Matrix::new(self.weights.rows(), self.weights.columns(), values)?;
        let accuracy = match (&self.judged, private) {
            (Judged::ByAccuracy { rows, labels, .. }, Some(private)) => {
                Some(ReleasedAccuracy { private, published: measured(&released, rows, labels)? })
            }
            _ => None,
        };
        let folded = model.normalisation.fold(&released)?;
        let features = folded.columns() - 1;
        Ok(Published {
            classes: model.classes.clone(),
            weights: (0..folded.rows()).map(|k| folded.row(k)[..features].to_vec()).collect(),
            bias: (0..folded.rows()).map(|k| folded[(k, features)]).collect(),
            sigma: release.sigma(),
            security,
            source,
            class_type: model.class_type,
            rows: RowPreparation::of(model),
            accuracy,
        })
    }
}

/// The bound on the 2-norm of the noise of a model, estimated or as it was estimated before.
fn estimated(
    project: &Project,
    model: &Model,
    rows: &DecryptedRows<'_>,
    source: &str,
    on_progress: &mut (dyn FnMut(ExportEvent<'_>) + Send),
) -> Result<f64> {
    let path = project.model(&model.name)?.with_extension("noise");
    if let Some(bound) = StoredEstimate::read(project, &path, source)? {
        return Ok(bound);
    }
    let bound = rows.estimate(on_progress)?.bound();
    StoredEstimate { source: source.to_owned(), bound }.write(project, &path)?;
    Ok(bound)
}

impl StoredEstimate {
    /// The stored bound of these weights. Earlier versions stored it without a lock. A file of
    /// another passphrase is that of an earlier model of this name.
    fn read(project: &Project, path: &Path, source: &str) -> Result<Option<f64>> {
        let stored = match project::read_private::<Self>(path, project.passphrase()) {
            Err(Error::Keys(KeysError::Locked { .. } | KeysError::Passphrase { .. })) => None,
            read => read?,
        };
        Ok(stored.filter(|stored| stored.source == source).map(|stored| stored.bound))
    }

    /// Stores the bound as a model is stored: it follows from decrypted rows.
    fn write(&self, project: &Project, path: &Path) -> Result<()> {
        let lock = project.passphrase().map(FileSealer::new).transpose()?;
        project::write_private(path, self, lock.as_ref())
    }
}

/// The noise that a budget is made for. If there may be later models, they may have at least twice
/// the noise of the first.
///
/// The published sigma tells it, and an estimate rests on decrypted rows, whose noise depends on
/// the secret key. So it is rounded up to an eighth of a bit: rows in coefficient form, which are
/// exact to 2^-21, then change it with probability below 2^-17.
fn room_for(noise: f64, models: u64) -> f64 {
    let (room, steps) = if models > 1 { (2.0, 1.0) } else { (1.0, 8.0) };
    libm::exp2(libm::ceil(steps * libm::log2(room * noise)) / steps)
}

fn numbers_of(model: &Model) -> u64 {
    (model.classes.len() * (model.features() + 1)) as u64
}

/// Checks that the requested limits, if any, are those of the budget.
fn require_same(limits: Option<ReleaseLimits>, model: &Model, state: ReleaseBudget) -> Result<()> {
    let ReleaseBudget { numbers, security, .. } = state;
    let same = |wanted: ReleaseLimits| {
        wanted.security == security && wanted.models.max(1).checked_mul(numbers_of(model)) == Some(numbers)
    };
    if limits.is_none_or(same) { Ok(()) } else { Err(Error::ReleaseFixed { numbers, security }) }
}

/// Checks the requested security of a model of an old key, whose number of models is unknown.
fn require_security(limits: Option<ReleaseLimits>, model: &Model, security: u32) -> Result<()> {
    let same = |wanted: ReleaseLimits| wanted.security == security;
    if limits.is_none_or(same) { Ok(()) } else { Err(Error::ReleaseFixed { numbers: numbers_of(model), security }) }
}

fn fingerprint(model: &Model) -> String {
    let mut hasher = blake3::Hasher::new();
    for x in model.weights.iter().flatten().chain(&model.bias) {
        hasher.update(&x.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::{ReleaseLimits, StoredEstimate, room_for};
    use crate::Project;
    use hetal_keys::{Passphrase, locked_file};
    use hetal_testkit::TempDir;

    /// The bound follows from decrypted rows: with a passphrase it is locked. A file without a lock
    /// that an earlier version left is read.
    #[test]
    fn the_exact_bound_is_locked_with_the_passphrase() {
        let folder = TempDir::new();
        let mut project = Project::open(&folder.path().join("p"), Some("insecure-toy11")).unwrap();
        let path = project.model("birds").unwrap().with_extension("noise");
        let estimate = StoredEstimate { source: "weights".to_owned(), bound: 1.25e-6 };
        estimate.write(&project, &path).unwrap();
        assert!(!locked_file::is_locked(&std::fs::read(&path).unwrap()));
        project.set_passphrase(Some(Passphrase::new("a b c".to_owned().into()).unwrap()));
        assert_eq!(StoredEstimate::read(&project, &path, "weights").unwrap(), Some(1.25e-6));
        estimate.write(&project, &path).unwrap();
        assert!(locked_file::is_locked(&std::fs::read(&path).unwrap()));
        assert_eq!(StoredEstimate::read(&project, &path, "weights").unwrap(), Some(1.25e-6));
        assert_eq!(StoredEstimate::read(&project, &path, "other weights").unwrap(), None);
        for other in [None, Some(Passphrase::new("d e f".to_owned().into()).unwrap())] {
            project.set_passphrase(other);
            assert_eq!(StoredEstimate::read(&project, &path, "weights").unwrap(), None);
        }
    }

    /// The test of the attack on released weights (`crates/learn/tests/released_weights.rs`) names
    /// the same defaults.
    #[test]
    fn the_defaults_are_those_under_which_the_attack_is_tested() {
        let ReleaseLimits { security, models } = ReleaseLimits::default();
        assert_eq!((security, models), (15, 1));
    }

    #[test]
    fn the_published_noise_hides_its_low_digits() {
        for noise in [1.1e-7, 3.3e-6, 0.9] {
            let (one, many) = (room_for(noise, 1), room_for(noise, 4));
            assert!(one >= noise && one < 1.091 * noise && many >= 2.0 * noise && many < 4.0 * noise);
            assert_eq!(one.to_bits(), room_for(noise * (1.0 + 1e-6), 1).to_bits());
            assert_eq!(libm::log2(many), libm::log2(many).round());
        }
    }
}
