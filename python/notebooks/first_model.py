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
# # A first model
#
# A server trains a classifier on rows that it cannot read. Here the server runs on this machine, and
# the parameter set is `insecure-toy11`: fast, and without any security. Leave out `param_set` for
# 132 bits of security, which needs 13 GiB of memory on one machine.

# %%
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hetal import HetalClassifier

X, y = load_iris(return_X_y=True, as_frame=True)
names = y.map({0: "setosa", 1: "versicolor", 2: "virginica"})
X_train, X_test, y_train, y_test = train_test_split(X, names, random_state=0, stratify=names)

# %% [markdown]
# Columns are standardised before they are encrypted, and hyper-parameters follow from the rows, as
# with the program `hetal train`. Both are said when the training begins.

# %%
clf = HetalClassifier(param_set="insecure-toy11")
clf.fit(X_train, y_train)

# %% [markdown]
# The accuracy, beside that of scikit-learn on the same rows without encryption:

# %%
plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X_train, y_train)
print(f"encrypted {clf.score(X_test, y_test):.3f}, plain {plain.score(X_test, y_test):.3f}")
assert clf.score(X_test, y_test) > 0.9

# %% [markdown]
# What happened in each epoch, and the decrypted weights by the names of the columns:

# %%
import pandas as pd

print(pd.DataFrame(clf.history_).round(3).tail().to_string())
print(pd.DataFrame(clf.coef_, index=clf.classes_, columns=clf.feature_names_in_).round(2).to_string())

# %% [markdown]
# The server can classify new rows as well, without seeing them or the model:

# %%
remote = clf.predict_remote(X_test[:10])
assert (remote == clf.predict(X_test[:10])).all()
remote
