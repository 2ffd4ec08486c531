"""scikit-learn's own checks of estimators, at the insecure set."""

import pytest
from conftest import toy
from sklearn.utils.estimator_checks import parametrize_with_checks

WEIGHTS = "weights of rows and classes are refused until the estimator passes them to the client"

#: Checks that cannot hold, and why.
EXPECTED_FAILURES = {
    "check_sample_weights_pandas_series": WEIGHTS,
    "check_sample_weights_not_an_array": WEIGHTS,
    "check_sample_weights_list": WEIGHTS,
    "check_all_zero_sample_weights_error": WEIGHTS,
    "check_sample_weights_shape": WEIGHTS,
    "check_sample_weights_not_overwritten": WEIGHTS,
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
    "check_classifiers_one_label_sample_weights": WEIGHTS,
    "check_class_weight_classifiers": WEIGHTS,
}


def expected_failures(estimator):
    return EXPECTED_FAILURES


@parametrize_with_checks(
    [toy(max_epochs=8, patience=8, batch_size=256)], expected_failed_checks=expected_failures
)
def test_estimator(estimator, check, home):
    check(estimator)


def test_the_list_is_short():
    assert len(set(EXPECTED_FAILURES.values())) <= 2, "few reasons"
    assert len(EXPECTED_FAILURES) <= 9


assert pytest
