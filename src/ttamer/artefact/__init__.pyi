from ttamer.artefact.files import Artefact as Artefact
from ttamer.artefact.files import inspect as inspect
from ttamer.artefact.files import load as load
from ttamer.artefact.files import open_artefact as open_artefact
from ttamer.artefact.files import save as save
