"""scikit-learn's own checks of estimators, at the insecure set."""

from conftest import toy
from sklearn.utils.estimator_checks import parametrize_with_checks

#: Checks that cannot hold, and why.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "it compares probabilities to 7 digits, and ciphertexts have noise; besides, columns are centred without weights"
    ),
}


def expected_failures(estimator):
    return EXPECTED_FAILURES


# Strict: a check that passes after all must leave the list.
@parametrize_with_checks(
    [toy(max_epochs=8, patience=8, batch_size=256)], expected_failed_checks=expected_failures, xfail_strict=True
)
def test_estimator(estimator, check, home):
    check(estimator)


def test_the_list_is_short():
    assert len(EXPECTED_FAILURES) <= 2

