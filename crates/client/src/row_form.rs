//! Which form rows are encrypted in.

use crate::rpc::Offer;
use crate::{Error, Layout, Result};
use hetal_learn::RowForm;

/// The uplink that is assumed before anything was sent, in Mbit/s.
pub const USUAL_UPLINK: f64 = 100.0;

/// What the owner wishes for the form of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowFormWish {
    /// The form. `None` chooses the faster one.
    pub form: Option<RowForm>,
    /// Mbit/s from here to the server. `None` takes the rate of the last upload.
    pub uplink: Option<f64>,
}

impl RowFormWish {
    /// For a server on this machine: nothing is gained by fewer bytes.
    pub const LOCAL: Self = Self { form: Some(RowForm::Slots), uplink: None };

    /// The form for a server. Without a wish it is coefficient form if a lift takes the server less
    /// time than the upload of the bytes that it saves. `measured` is the rate of the last upload.
    pub fn choose(self, offer: &Offer, layout: &Layout, measured: Option<f64>) -> Result<RowForm> {
        if let Some(form) = self.form {
            let accepted = offer.row_forms.contains(&form);
            return if accepted { Ok(form) } else { Err(Error::RowForm { form: form.name() }) };
        }
        let uplink = self.uplink.or(measured).unwrap_or(USUAL_UPLINK);
        let is_faster = saved_megabits(layout) / uplink > offer.lift_seconds;
        let accepted = offer.row_forms.contains(&RowForm::Coefficients);
        Ok(if accepted && is_faster { RowForm::Coefficients } else { RowForm::Slots })
    }
}

/// Megabits that coefficient form saves for each ciphertext of features and labels, on average.
pub fn saved_megabits(layout: &Layout) -> f64 {
    let bytes = |form| layout.row_bytes(form, true) as f64;
    let saved = bytes(RowForm::Slots) - bytes(RowForm::Coefficients);
    saved * 8e-6 / layout.row_vectors(true).len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::LayoutShape;
    use hetal_ckks::Params;
    use hetal_learn::KeyPlan;
    use std::sync::Arc;

    fn layout() -> Layout {
        let shape = LayoutShape {
            batch: 1024,
            features: 768,
            classes: 7,
            range: 32.0,
            weighted: false,
            key_plan: KeyPlan::Fast,
        };
        Layout::new(Arc::new(Params::named("full").unwrap()), shape).unwrap()
    }

    fn offer(lift_seconds: f64) -> Offer {
        Offer { row_forms: vec![RowForm::Slots, RowForm::Coefficients], lift_seconds, ..Offer::default() }
    }

    #[test]
    fn the_faster_form_is_chosen() {
        let layout = layout();
        let saved = saved_megabits(&layout);
        assert!((24.0..26.0).contains(&saved), "{saved} Mbit");
        let choose = |uplink, measured, seconds| {
            RowFormWish { form: None, uplink }.choose(&offer(seconds), &layout, measured).unwrap()
        };
        use RowForm::{Coefficients, Slots};
        // A GPU at the usual uplink, and a CPU there and behind a slow line.
        assert_eq!([0.0125, 3.0].map(|seconds| choose(None, None, seconds)), [Coefficients, Slots]);
        assert_eq!(choose(Some(5.0), None, 3.0), Coefficients);
        assert_eq!(choose(None, Some(5.0), 3.0), Coefficients);
        assert_eq!(choose(Some(10_000.0), Some(5.0), 0.0125), Slots, "the wish counts more than the measurement");
        assert_eq!(choose(None, None, f64::NAN), Slots);
    }

    #[test]
    fn a_wish_is_kept_or_refused() {
        let layout = layout();
        let of = |form, offer: &Offer| RowFormWish { form: Some(form), uplink: None }.choose(offer, &layout, None);
        assert_eq!(of(RowForm::Coefficients, &offer(1e9)).unwrap(), RowForm::Coefficients);
        assert_eq!(of(RowForm::Slots, &offer(0.0)).unwrap(), RowForm::Slots);
        let old = Offer { row_forms: vec![RowForm::Slots], ..offer(0.0) };
        let refused = of(RowForm::Coefficients, &old).unwrap_err().to_string();
        assert!(refused.contains("coefficients"), "{refused}");
        assert_eq!(RowFormWish::default().choose(&old, &layout, None).unwrap(), RowForm::Slots);
    }
}
