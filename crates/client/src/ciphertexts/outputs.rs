//! Ciphertexts that a server computed: downloaded, checked and decrypted.

use crate::project::{io_error, remove_if_there};
use crate::rpc::{JobId, Output, Remote};
use crate::{Error, Layout, Owner, Result};
use hetal_ckks::{Ciphertext, Complex64};
use hetal_learn::agreement::centre_over_classes;
use hetal_learn::{Matrix, packing};
use hetal_ring::Poly;
use std::path::{Path, PathBuf};

/// No honest server sends logits beyond this multiple of their range. With one prime, larger
/// multiples than 128 cannot be told from smaller ones.
const MAX_RANGE_MULTIPLE: f64 = 100.0;
/// The primes of returned logits.
pub(crate) const LOGIT_LIMBS: usize = 1;
/// A training in a smaller range can leave the domain of the softmax, and its logits are then
/// anything. The client's judge widens the range.
const WIDE_RANGE: f64 = 128.0;
/// Slots of a classifier that hold no weight stay zero up to noise, which is below 1e-5. An alarm,
/// not a bound: what a server adds to the weights themselves does not show here.
const UNUSED_ALARM: f64 = 1e-3;

/// The outputs of one job.
pub(crate) struct Outputs<'a> {
    pub remote: &'a Remote,
    pub job: JobId,
    pub owner: &'a Owner,
    pub layout: &'a Layout,
    /// The folder for downloads.
    pub folder: &'a Path,
}

impl Outputs<'_> {
    /// Downloads and decrypts the logits of queries. `rows` gives the rows of each ciphertext, and
    /// `range` determines their scale.
    pub fn logits(&self, outputs: &[Output], rows: &[usize], range: f64) -> Result<Matrix> {
        let files = download_logits(self.remote, self.job, outputs, rows.len(), self.layout, self.folder, "logits")?;
        plausible(self.decrypted_logits(&files, rows, range)?, range)
    }

    /// Decrypts downloaded logits of validation rows, which the judge of a training looks at, and
    /// removes the files.
    pub fn validation_logits(&self, files: &[PathBuf], rows: &[usize], range: f64) -> Result<Matrix> {
        let logits = self.decrypted_logits(files, rows, range)?;
        if range < WIDE_RANGE { Ok(logits) } else { plausible(logits, range) }
    }

    fn decrypted_logits(&self, files: &[PathBuf], rows: &[usize], range: f64) -> Result<Matrix> {
        let scale = self.layout.scale(range)?;
        let mut values = Vec::new();
        for (path, &rows) in files.iter().zip(rows) {
            let all = self.read(LOGIT_LIMBS, self.layout.level_plan().logits(), path);
            remove_if_there(path)?;
            let all = all?;
            let [ct] = &all[..] else { return Err(Error::hostile("a blob of logits that is not one ciphertext")) };
            let logits = packing::unpack_logits(self.layout.geometry(), self.owner.decrypt(ct)?.peek(), rows)?;
            values.extend(logits.values().iter().map(|t| scale * t));
        }
        Ok(Matrix::new(rows.iter().sum(), self.layout.geometry().classes(), values)?)
    }

    /// Downloads the weights of a check. The file is kept: a training that is killed now does not
    /// download it again.
    pub fn download_weights(&self, output: &Output, path: &Path) -> Result<()> {
        Ok(self.remote.download(self.job, output, self.layout.weight_bytes(), path, &mut |_, _| ())?)
    }

    /// Decrypts downloaded weights, for normalised features. Noise moves the mean of the classes,
    /// which changes no prediction; it is taken out.
    pub fn weights(&self, path: &Path) -> Result<Matrix> {
        let level = self.layout.level_plan().weights();
        let parts = self.read(self.owner.params.limbs(level), level, path)?;
        let parts: Vec<_> = parts.iter().map(|ct| self.owner.decrypt(ct)).collect::<Result<_>>()?;
        let slots: Vec<&[Complex64]> = parts.iter().map(|part| &part.peek()[..]).collect();
        let unused = packing::largest_unused(self.layout.geometry(), &slots);
        if unused.is_nan() || unused > UNUSED_ALARM {
            return Err(Error::hostile("weights with values in slots that hold none"));
        }
        // The size of the blob was checked, so the number of parts is right.
        let mut weights = packing::unpack_weights(self.layout.geometry(), &slots)?;
        centre_over_classes(&mut weights);
        Ok(weights)
    }

    /// Reads a downloaded blob of concatenated ciphertexts and checks their primes and the scale of
    /// their level.
    fn read(&self, limbs: usize, level: usize, path: &Path) -> Result<Vec<Ciphertext<Poly>>> {
        let bytes = std::fs::read(path).map_err(|e| io_error("reading", path, &e))?;
        let (codec, mut rest, mut all) = (self.owner.codec(), &bytes[..], Vec::new());
        let scale = self.owner.params.scale(level);
        while !rest.is_empty() {
            let ct: Ciphertext<Poly> = codec.read(&mut rest).map_err(|e| Error::hostile(e.to_string()))?;
            if ct.limbs != limbs || (ct.scale / scale - 1.0).abs() > 1e-9 {
                return Err(Error::hostile(format!("a ciphertext of {} primes instead of {limbs}", ct.limbs)));
            }
            all.push(ct);
        }
        Ok(all)
    }
}

/// Downloads the logits of a validation or of queries, each ciphertext into a file of its own. What
/// is downloaded, and when, does not depend on anything that was decrypted.
pub(crate) fn download_logits(
    remote: &Remote,
    job: JobId,
    outputs: &[Output],
    expected: usize,
    layout: &Layout,
    folder: &Path,
    name: &str,
) -> Result<Vec<PathBuf>> {
    if outputs.len() != expected {
        let got = outputs.len();
        return Err(Error::hostile(format!("{got} ciphertexts of logits instead of {expected}")));
    }
    let download = |(index, output): (usize, &Output)| {
        let path = folder.join(format!("{name}-{index:04}.ct"));
        remote.download(job, output, layout.logit_bytes(), &path, &mut |_, _| ())?;
        Ok(path)
    };
    outputs.iter().enumerate().map(download).collect()
}

/// The logits, unless they are absurd.
fn plausible(logits: Matrix, range: f64) -> Result<Matrix> {
    // The comparison also refuses what is not a number.
    if logits.values().iter().all(|v| v.abs() <= MAX_RANGE_MULTIPLE * range) {
        return Ok(logits);
    }
    Err(Error::hostile(format!("logits far beyond their range of {range}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One prime holds every logit that is not refused.
    #[test]
    fn returned_logits_fit_into_one_prime() {
        for set in ["full", "insecure-toy11", "insecure-toy12"] {
            let (params, plan) = (hetal_ckks::Params::named(set).unwrap(), hetal_learn::LevelPlan::lowest());
            let largest = params.chain()[0] as f64 / 2.0 / params.scale(plan.logits());
            for (classes, range) in [(2, 16.0), (2, 32.0), (3, 32.0), (10, 128.0), (10, 512.0)] {
                let constants = hetal_learn::softmax::Constants::for_plan(classes, range, plan).unwrap();
                let bound = largest * constants.scale;
                assert!(bound > 1.1 * MAX_RANGE_MULTIPLE * range, "{set}, {range}: {bound}");
            }
        }
    }

    #[test]
    fn absurd_logits_of_queries_are_refused_in_every_range() {
        for range in hetal_learn::judge::RANGES {
            let logits = |value: f64| Matrix::from_fn(1, 2, |_, k| if k == 0 { value } else { 0.0 });
            assert!(plausible(logits(99.0 * range), range).is_ok());
            for absurd in [101.0 * range, -101.0 * range, f64::NAN, f64::INFINITY] {
                assert!(plausible(logits(absurd), range).is_err(), "{absurd} in {range}");
            }
        }
    }
}
