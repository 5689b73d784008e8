from ttamer.sklearn.classifier import CascadeClassifier as CascadeClassifier
