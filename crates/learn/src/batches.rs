//! The batches of a training, piece by piece.
//!
//! The row-shifted versions of a batch take sixteen times the memory of the uploaded rows (for ten
//! classes). If they do not all fit, some are computed again for each step.

use crate::nesterov::StepSize;
use crate::trainer::{Batch, ModelState, Stage, Trainer};
use crate::{Error, Geometry, Result};
use hetal_circuits::Engine;
use std::borrow::Cow;
use std::ops::Range;

/// The row ranges of all pieces of `rows` rows in batches of `batch`, in upload order.
pub fn pieces(g: &Geometry, rows: usize, batch: usize) -> Vec<Range<usize>> {
    let split = |range: Range<usize>, size: usize| {
        let end = range.end;
        range.step_by(size.max(1)).map(move |start| start..(start + size.max(1)).min(end))
    };
    split(0..rows, batch).flat_map(|batch| split(batch, g.rows())).collect()
}

/// The numbers of the pieces that form batch `number`, for batches of `batch` rows and `sent`
/// uploaded pieces. All batches but the last have the same number of pieces.
pub fn pieces_of(g: &Geometry, batch: usize, number: usize, sent: usize) -> Range<usize> {
    let count = g.pieces(batch);
    number.saturating_mul(count).min(sent)..(number + 1).saturating_mul(count).min(sent)
}

/// One encrypted piece as the client uploaded it.
#[derive(Clone, Debug)]
pub struct EncryptedPiece<C> {
    /// Its blocks of features.
    pub features: Vec<C>,
    /// The labels, times the weights of their rows.
    pub labels: C,
    /// The weights of the rows, if they differ.
    pub row_weights: Option<C>,
    /// Rows that are not padding.
    pub rows: usize,
}

/// A piece on the server, prepared or not.
#[derive(Clone, Debug)]
pub enum CachedBatch<C> {
    /// With its row-shifted versions, which stay in memory.
    Prepared(Batch<C>),
    /// As uploaded. The versions are computed for each step and dropped.
    Raw(EncryptedPiece<C>),
}

impl<C: Clone + Send + Sync> CachedBatch<C> {
    /// The batch with its versions.
    pub fn ready<E: Engine<Ciphertext = C>>(&self, engine: &E, trainer: &Trainer<E>) -> Result<Cow<'_, Batch<C>>> {
        match self {
            Self::Prepared(batch) => Ok(Cow::Borrowed(batch)),
            Self::Raw(EncryptedPiece { features, labels, row_weights, rows }) => {
                let batch = trainer.batch(engine, features, labels.clone(), *rows)?;
                Ok(Cow::Owned(Batch { row_weights: row_weights.clone(), ..batch }))
            }
        }
    }
}

/// The pieces of all batches of a training, one after the other. Numbers are those of pieces.
pub trait Batches<E: Engine> {
    /// The number of pieces.
    fn count(&self) -> usize;
    /// The rows of a piece that are not padding.
    fn rows(&self, number: usize) -> Result<usize>;
    /// A piece with its versions, for the next step.
    fn batch(&self, engine: &E, trainer: &Trainer<E>, number: usize) -> Result<Cow<'_, Batch<E::Ciphertext>>>;
}

impl<E: Engine> Batches<E> for [Batch<E::Ciphertext>] {
    fn count(&self) -> usize {
        self.len()
    }

    fn rows(&self, number: usize) -> Result<usize> {
        self.get(number).map(|batch| batch.rows).ok_or_else(|| unknown(number))
    }

    fn batch(&self, _: &E, _: &Trainer<E>, number: usize) -> Result<Cow<'_, Batch<E::Ciphertext>>> {
        self.get(number).map(Cow::Borrowed).ok_or_else(|| unknown(number))
    }
}

impl<E: Engine> Batches<E> for [CachedBatch<E::Ciphertext>] {
    fn count(&self) -> usize {
        self.len()
    }

    fn rows(&self, number: usize) -> Result<usize> {
        match self.get(number).ok_or_else(|| unknown(number))? {
            CachedBatch::Prepared(batch) => Ok(batch.rows),
            CachedBatch::Raw(upload) => Ok(upload.rows),
        }
    }

    fn batch(&self, engine: &E, trainer: &Trainer<E>, number: usize) -> Result<Cow<'_, Batch<E::Ciphertext>>> {
        self.get(number).ok_or_else(|| unknown(number))?.ready(engine, trainer)
    }
}

/// One step on some pieces, which are prepared one after the other.
pub fn step<E: Engine>(
    engine: &E,
    trainer: &Trainer<E>,
    model: &ModelState<E::Ciphertext>,
    held: &(impl Batches<E> + ?Sized),
    pieces: Range<usize>,
    size: StepSize,
    ended: &mut dyn FnMut(Stage),
) -> Result<ModelState<E::Ciphertext>> {
    let rows = pieces.clone().map(|piece| held.rows(piece)).sum::<Result<usize>>()?;
    let mut step = trainer.begin(model, rows, size);
    for piece in pieces {
        step.add(engine, &*held.batch(engine, trainer, piece)?, ended)?;
    }
    step.finish(engine, ended)
}

fn unknown(number: usize) -> Error {
    Error::Invalid { what: "batch", value: number as f64, must: "below the number of batches" }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_batch() {
        let g = Geometry::new(1024, 300, 12, 8).unwrap();
        assert_eq!((g.rows(), g.pieces(300)), (128, 3));
        let all = pieces(&g, 700, 300);
        assert_eq!(all, [0..128, 128..256, 256..300, 300..428, 428..556, 556..600, 600..700]);
        let of = |number| pieces_of(&g, 300, number, all.len());
        assert_eq!([of(0), of(1), of(2), of(3)], [0..3, 3..6, 6..7, 7..7]);
        // Small batches are one piece each.
        assert_eq!(pieces(&g, 5, 2), [0..2, 2..4, 4..5]);
        assert_eq!(pieces_of(&g, 2, 1, 3), 1..2);
    }
}
