//! What an owner chooses among what a server offers, as messages.

use hetal_learn::{KeyPlan, RowForm};
use hetal_wire::v1;

/// A form of rows in an offer.
pub(super) fn row_form(message: v1::RowForm) -> Option<RowForm> {
    match message {
        v1::RowForm::Unspecified => None,
        v1::RowForm::Slots => Some(RowForm::Slots),
        v1::RowForm::Coefficients => Some(RowForm::Coefficients),
    }
}

/// A key plan in an offer.
pub(super) fn key_plan(message: v1::KeyPlan) -> Option<KeyPlan> {
    match message {
        v1::KeyPlan::Unspecified => None,
        v1::KeyPlan::Fast => Some(KeyPlan::Fast),
        v1::KeyPlan::Balanced => Some(KeyPlan::Balanced),
        v1::KeyPlan::Small => Some(KeyPlan::Small),
    }
}

/// A key plan in a request.
pub(super) fn key_plan_message(plan: KeyPlan) -> i32 {
    match plan {
        // It is never offered.
        KeyPlan::Most => v1::KeyPlan::Unspecified.into(),
        KeyPlan::Fast => v1::KeyPlan::Fast.into(),
        KeyPlan::Balanced => v1::KeyPlan::Balanced.into(),
        KeyPlan::Small => v1::KeyPlan::Small.into(),
    }
}

/// A form of rows in a request.
pub(super) fn row_form_message(form: RowForm) -> i32 {
    match form {
        RowForm::Slots => v1::RowForm::Slots.into(),
        RowForm::Coefficients => v1::RowForm::Coefficients.into(),
    }
}
