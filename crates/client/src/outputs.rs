//! Ciphertexts that a server computed: fetched, checked for what they must be, opened.

use crate::project::{io, remove_if_there};
use crate::remote::{JobId, Output, Remote};
use crate::{Error, Layout, Owner, Result};
use hetal_ckks::Ciphertext;
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
            let ct = self.fetch(output, self.layout.logit_bytes(), self.layout.ledger().logits(), &path)?;
            remove_if_there(&path)?;
            let logits = packing::unpack_logits(self.layout.geometry(), self.owner.open(&ct)?.peek(), rows)?;
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
        let ct = self.fetch(output, self.layout.weight_bytes(), self.layout.ledger().weights(), path)?;
        Ok(packing::unpack_weights(self.layout.geometry(), self.owner.open(&ct)?.peek())?)
    }

    /// Downloads a ciphertext and checks that it is of the level it should have.
    fn fetch(&self, output: &Output, size: u64, level: usize, path: &Path) -> Result<Ciphertext<Poly>> {
        self.remote.download(self.job, output, size, path, &mut |_, _| ())?;
        let bytes = std::fs::read(path).map_err(|e| io("reading", path, &e))?;
        let ct: Ciphertext<Poly> = self.owner.codec().decode(&bytes).map_err(|e| Error::hostile(e.to_string()))?;
        let (limbs, scale) = (self.owner.params.limbs(level), self.owner.params.scale(level));
        if ct.limbs != limbs || (ct.scale / scale - 1.0).abs() > 1e-9 {
            return Err(Error::hostile(format!("a ciphertext of {} primes where {limbs} belong", ct.limbs)));
        }
        Ok(ct)
    }
}
