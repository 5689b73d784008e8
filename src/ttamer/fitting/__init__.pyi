from ttamer.fitting.options import FitOptions as FitOptions
from ttamer.fitting.plans import fit as fit
from ttamer.fitting.streaming import fit_batches as fit_batches, fit_file as fit_file
