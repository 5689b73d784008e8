from ttamer.artefact.files import inspect as inspect
from ttamer.artefact.files import load as load
from ttamer.artefact.files import save as save
