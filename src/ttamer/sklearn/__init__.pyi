from ttamer.sklearn.classifier import CascadeClassifier as CascadeClassifier
from ttamer.sklearn.regressor import CascadeRegressor as CascadeRegressor
