"""Reports: the comparison as one offline page with figures and a recommendation."""

from ttamer.reporting.figures import save_figure as save_figure
from ttamer.reporting.page import report as report
from ttamer.reporting.recommendation import Recommendation as Recommendation, recommend as recommend
