//! What an export needs of the training of a model: it repeats the training on plain numbers to
//! find the noise of the weights.

use crate::ciphertexts::RowBlobFile;
use crate::layout::LayoutShape;
use crate::rpc::HyperParameters;
use crate::{Error, Result};
use hetal_learn::agreement::{Agreement, AgreementLimits};
use hetal_learn::{KeyPlan, Verdict};
use serde::{Deserialize, Serialize};

/// The hyper-parameters, verdicts and rows of a training. The rows are those in the folder of the
/// training, encrypted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingHistory {
    /// The agreed hyper-parameters.
    pub terms: HyperParameters,
    /// The verdicts of all rounds, in order.
    pub verdicts: Vec<Verdict>,
    /// The encrypted training rows.
    pub batches: Vec<RowBlobFile>,
    /// The encrypted validation rows.
    pub validation: Vec<RowBlobFile>,
    /// The classes of the validation rows.
    pub labels: Vec<usize>,
    /// Whether the training rows had different weights.
    #[serde(default)]
    pub weighted: bool,
}

impl TrainingHistory {
    /// The agreement with the server. Fails if the server hides a part of it.
    pub fn agreement(&self) -> Result<Agreement> {
        let terms = &self.terms;
        let told = (terms.rate, terms.lowering, terms.momentum, terms.seed, terms.alpha);
        let (Some(rate), Some(lowering), Some(momentum), Some(seed), Some(alpha)) = told else {
            return Err(Error::HiddenTerms);
        };
        let HyperParameters { batch, patience, max_epochs, range, check_every, .. } = *terms;
        let weighted = self.weighted;
        let defaults = AgreementLimits::default().defaults;
        Ok(Agreement {
            batch,
            rate,
            lowering,
            momentum,
            patience,
            max_epochs,
            range,
            seed,
            alpha,
            weighted,
            check_every,
            ..defaults
        })
    }

    /// The shape of the circuit for a number of features. Sizes of rows do not depend on the keys.
    pub fn shape(&self, features: usize, classes: usize) -> LayoutShape {
        let (batch, range) = (self.terms.batch, self.terms.range);
        LayoutShape { batch, features, classes, range, weighted: self.weighted, key_plan: KeyPlan::Fast }
    }
}
