# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     name: python3
#     display_name: Python 3
# ---

# %% [markdown]
# # Imbalanced data and search
#
# One class in ten. Accuracy says little here, so the search compares the balanced accuracy, with
# and without weights of classes. Every combination is a training on encrypted rows. The server
# learns whether rows have weights, and no weight.

# %%
from sklearn.datasets import make_classification
from sklearn.metrics import balanced_accuracy_score, classification_report
from sklearn.model_selection import GridSearchCV, train_test_split

from hetal import HetalClassifier

X, y = make_classification(
    n_samples=400, n_features=8, n_informative=5, weights=[0.9], class_sep=1.5, flip_y=0.0, random_state=3
)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)

# %%
clf = HetalClassifier(param_set="insecure-toy11", max_epochs=12, verbose=0)
search = GridSearchCV(clf, {"class_weight": [None, "balanced"]}, scoring="balanced_accuracy", cv=2)
search.fit(X_train, y_train)
print(search.best_params_, round(search.best_score_, 3))

# %%
print(classification_report(y_test, search.predict(X_test)))
assert search.best_params_ == {"class_weight": "balanced"}
assert balanced_accuracy_score(y_test, search.predict(X_test)) > 0.75

# %% [markdown]
# Subtracting the logarithm of each class's share of the rows after the training does nearly the
# same, and the server does not learn of it:

# %%
prior = HetalClassifier(param_set="insecure-toy11", max_epochs=12, prior=1.0, verbose=0).fit(X_train, y_train)
print(round(balanced_accuracy_score(y_test, prior.predict(X_test)), 3))
