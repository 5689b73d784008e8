"""Cascades of scikit-learn models, as scikit-learn estimators.

::

    from ttamer.sklearn import CascadeClassifier

    models = [("small", LogisticRegression()), ("large", RandomForestClassifier())]
    cascade = CascadeClassifier(models, costs="time").fit(x_train, y_train)
    cascade.score(x_test, y_test), cascade.run_batch(x_test).cost.mean()
"""

from ttamer._checks import require

require("sklearn", "sklearn")

from ttamer.sklearn.classifier import CascadeClassifier as CascadeClassifier
from ttamer.sklearn.regressor import CascadeRegressor as CascadeRegressor
