//! The transformer encoder of BERT, MPNet and ViT: blocks of attention and a two-layer network,
//! each with a residual connection.

use crate::Result;
use crate::ops::{Activation, Attention, Linear, Norm};
use candle_core::Tensor;

/// The position of the normalisations in a block.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum NormOrder {
    /// After the residual has been added (BERT, MPNet).
    After,
    /// Before attention and network (ViT).
    Before,
}

/// One block.
pub(crate) struct Layer {
    /// Queries, keys and values side by side.
    pub qkv: Linear,
    /// The projection of the attention's result.
    pub out: Linear,
    /// The normalisation of the attention.
    pub attention_norm: Norm,
    /// The first layer of the network, with an exact GELU.
    pub up: Linear,
    /// Its second layer.
    pub down: Linear,
    /// The normalisation of the network.
    pub network_norm: Norm,
}

/// A stack of blocks.
pub(crate) struct TransformerEncoder {
    /// The blocks, first to last.
    pub layers: Vec<Layer>,
    /// Heads of each attention.
    pub heads: usize,
    /// The position of the normalisations.
    pub order: NormOrder,
    /// Scores by distance for each head (MPNet): heads by `2 reach + 1`.
    pub distance: Option<Tensor>,
}

impl TransformerEncoder {
    /// Applies all blocks to the rows of all sequences.
    pub fn forward(&self, mut x: Tensor, lengths: &[usize]) -> Result<Tensor> {
        let attention = Attention::new(lengths, self.heads, self.distance.as_ref(), x.device())?;
        let attend = |layer: &Layer, x: &Tensor| attention.forward(&layer.qkv.forward(x)?);
        for layer in &self.layers {
            x = match self.order {
                NormOrder::After => {
                    let x = layer.attention_norm.forward(&layer.out.added_to(&attend(layer, &x)?, &x)?)?;
                    let inner = layer.up.activated(&x, Activation::Gelu)?;
                    layer.network_norm.forward(&layer.down.added_to(&inner, &x)?)?
                }
                NormOrder::Before => {
                    let x = layer.out.added_to(&attend(layer, &layer.attention_norm.forward(&x)?)?, &x)?;
                    let inner = layer.up.activated(&layer.network_norm.forward(&x)?, Activation::Gelu)?;
                    layer.down.added_to(&inner, &x)?
                }
            };
        }
        Ok(x)
    }
}
