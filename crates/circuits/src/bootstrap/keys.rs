//! The switching keys of a bootstrap.

use super::layout::BootstrapLayout;
use crate::key_list::KeyList;
use crate::{KeyPlan, Result};
use hetal_ckks::{KeyId, Params};
use hetal_ring::automorphism;

/// The keys that bootstrapping needs: purpose and limbs.
pub fn keys(params: &Params) -> Vec<(KeyId, usize)> {
    keys_with_plan(params, KeyPlan::default())
}

/// The keys of [`super::Bootstrapper::with_plan`].
pub fn keys_with_plan(params: &Params, plan: KeyPlan) -> Vec<(KeyId, usize)> {
    keys_of(params, &BootstrapLayout::full(params, plan))
}

/// The keys of [`super::Bootstrapper::sparse`].
pub fn sparse_keys(params: &Params, slots: usize) -> Result<Vec<(KeyId, usize)>> {
    Ok(keys_of(params, &BootstrapLayout::sparse(params, slots)?))
}

/// The keys of which a server derives the others from the sparse secret: of these, the one for the
/// smallest rotation, and the master key of the step from each rotation to the next. `None` if the
/// plan or the set derives no keys.
pub(crate) fn derivation(params: &Params, plan: KeyPlan) -> Option<[KeyId; 2]> {
    if !plan.derives() || params.master_digit_starts().is_empty() {
        return None;
    }
    let layout = BootstrapLayout::full(params, plan);
    let (raised, _) = layout.to_slots.iter().find(|(shape, _)| shape.raised)?;
    let rotations = Vec::from_iter(raised.rotations(params.slots()).0);
    let [first, second, ..] = rotations[..] else { return None };
    let step = second - first;
    let galois = |rotation| automorphism::rotation_to_galois(params.log_n(), rotation);
    let equal = rotations.windows(2).all(|pair| pair[1] - pair[0] == step);
    equal.then(|| [KeyId::FromSparse(galois(first)), KeyId::Master(galois(step))])
}

fn keys_of(params: &Params, layout: &BootstrapLayout) -> Vec<(KeyId, usize)> {
    let mut list = KeyList::new(params);
    list.want_rotation(layout.start, params.limbs(0));
    for (shape, limbs) in layout.to_coefficients.iter().chain(&layout.to_slots) {
        let (inner, outer) = shape.rotations(params.slots());
        if shape.raised {
            inner.into_iter().for_each(|rotation| list.want_rotation_from_sparse(rotation, *limbs));
        } else {
            inner.into_iter().for_each(|rotation| list.want_rotation(rotation, *limbs));
        }
        outer.into_iter().for_each(|rotation| list.want_rotation(rotation, *limbs));
    }
    layout.trace.iter().for_each(|&rotation| list.want_rotation(rotation, layout.raised_limbs));
    if layout.is_sparse() {
        list.want(KeyId::FromSparse(1), params.chain().len());
        list.want_rotation(layout.slots as i64, layout.after_exponential(params) - 1);
    }
    let after_to_slots = layout.raised_limbs - layout.to_slots.len();
    list.want_conjugation(after_to_slots);
    list.want(KeyId::Relinearisation, after_to_slots);
    list.want(KeyId::ToSparse, 1);
    list.into_vec()
}
