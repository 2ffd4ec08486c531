//! The transformer encoder shared by BERT, MPNet and ViT: attention and a two-layer network, each with a residual.

use crate::Result;
use crate::ops::{Activation, Attention, Linear, Norm};
use candle_core::Tensor;

/// Where the normalisation of a block stands.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Order {
    /// After the residual has been added (BERT, MPNet).
    After,
    /// Before attention and network (ViT).
    Before,
}

/// One block.
pub(crate) struct Layer {
    /// Queries, keys and values side by side.
    pub qkv: Linear,
    /// What attention's result goes through.
    pub out: Linear,
    /// The normalisation of the attention half.
    pub attention_norm: Norm,
    /// The first half of the network, with an exact GELU.
    pub up: Linear,
    /// Its second half.
    pub down: Linear,
    /// The normalisation of the network half.
    pub network_norm: Norm,
}

/// A stack of blocks.
pub(crate) struct Encoder {
    /// The blocks, first to last.
    pub layers: Vec<Layer>,
    /// Heads of each attention.
    pub heads: usize,
    /// Where normalisation stands.
    pub order: Order,
    /// Scores by distance for each head (MPNet): heads by `2 reach + 1`.
    pub distance: Option<Tensor>,
}

impl Encoder {
    /// Takes the rows of all sequences, one after the other, through the blocks.
    pub fn forward(&self, mut x: Tensor, lengths: &[usize]) -> Result<Tensor> {
        let attention = Attention::new(lengths, self.heads, self.distance.as_ref(), x.device())?;
        let attend = |layer: &Layer, x: &Tensor| attention.forward(&layer.qkv.forward(x)?);
        for layer in &self.layers {
            x = match self.order {
                Order::After => {
                    let x = layer.attention_norm.forward(&layer.out.added_to(&attend(layer, &x)?, &x)?)?;
                    let inner = layer.up.activated(&x, Activation::Gelu)?;
                    layer.network_norm.forward(&layer.down.added_to(&inner, &x)?)?
                }
                Order::Before => {
                    let x = layer.out.added_to(&attend(layer, &layer.attention_norm.forward(&x)?)?, &x)?;
                    let inner = layer.up.activated(&layer.network_norm.forward(&x)?, Activation::Gelu)?;
                    layer.down.added_to(&inner, &x)?
                }
            };
        }
        Ok(x)
    }
}
