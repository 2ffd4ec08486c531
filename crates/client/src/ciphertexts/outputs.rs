//! Ciphertexts that a server computed: fetched, checked for what they must be, opened.

use crate::project::{io, remove_if_there};
use crate::rpc::{JobId, Output, Remote};
use crate::{Error, Layout, Owner, Result};
use hetal_ckks::{Ciphertext, Complex64};
use hetal_learn::{Matrix, packing};
use hetal_ring::Poly;
use std::path::Path;

/// Logits beyond this multiple of their range come from no training.
const ABSURD: f64 = 1000.0;

/// The outputs of one job.
pub(crate) struct Outputs<'a> {
    pub remote: &'a Remote,
    pub job: JobId,
    pub owner: &'a Owner,
    pub layout: &'a Layout,
    /// Where they are kept on their way.
    pub folder: &'a Path,
}

impl Outputs<'_> {
    /// Logits of rows in files of `rows` rows each, which came divided by the scale of a range.
    pub fn logits(&self, outputs: &[Output], rows: &[usize], range: f64) -> Result<Matrix> {
        if outputs.len() != rows.len() {
            let (got, expected) = (outputs.len(), rows.len());
            return Err(Error::hostile(format!("{got} ciphertexts of logits where {expected} belong")));
        }
        let scale = self.layout.scale(range)?;
        let path = self.folder.join("logits.ct");
        let mut values = Vec::new();
        for (output, &rows) in outputs.iter().zip(rows) {
            let all = self.fetch(output, self.layout.logit_bytes(), self.layout.level_plan().logits(), &path)?;
            remove_if_there(&path)?;
            let [ct] = &all[..] else { return Err(Error::hostile("a blob of other than one ciphertext")) };
            let logits = packing::unpack_logits(self.layout.geometry(), self.owner.decrypt(ct)?.peek(), rows)?;
            values.extend(logits.values().iter().map(|t| scale * t));
        }
        let largest = values.iter().fold(0.0, |m: f64, v| if v.is_nan() { f64::INFINITY } else { m.max(v.abs()) });
        if largest > ABSURD * range {
            return Err(Error::hostile(format!("logits far beyond their range of {range}")));
        }
        Ok(Matrix::new(rows.iter().sum(), self.layout.geometry().classes(), values)?)
    }

    /// The weights of an epoch, for normalised features. The file stays: a training that is killed now has not to fetch it again.
    pub fn weights(&self, output: &Output, path: &Path) -> Result<Matrix> {
        let parts = self.fetch(output, self.layout.weight_bytes(), self.layout.level_plan().weights(), path)?;
        let parts: Vec<_> = parts.iter().map(|ct| self.owner.decrypt(ct)).collect::<Result<_>>()?;
        let slots: Vec<&[Complex64]> = parts.iter().map(|part| &part.peek()[..]).collect();
        // Another number of parts has another size, which was looked at before.
        Ok(packing::unpack_weights(self.layout.geometry(), &slots)?)
    }

    /// Downloads ciphertexts, one after the other in a blob, and checks that they are of the level they should have.
    fn fetch(&self, output: &Output, size: u64, level: usize, path: &Path) -> Result<Vec<Ciphertext<Poly>>> {
        self.remote.download(self.job, output, size, path, &mut |_, _| ())?;
        let bytes = std::fs::read(path).map_err(|e| io("reading", path, &e))?;
        let (codec, mut rest, mut all) = (self.owner.codec(), &bytes[..], Vec::new());
        let (limbs, scale) = (self.owner.params.limbs(level), self.owner.params.scale(level));
        while !rest.is_empty() {
            let ct: Ciphertext<Poly> = codec.read(&mut rest).map_err(|e| Error::hostile(e.to_string()))?;
            if ct.limbs != limbs || (ct.scale / scale - 1.0).abs() > 1e-9 {
                return Err(Error::hostile(format!("a ciphertext of {} primes where {limbs} belong", ct.limbs)));
            }
            all.push(ct);
        }
        Ok(all)
    }
}
