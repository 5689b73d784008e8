"""Reports: the comparison as one offline page with figures and a recommendation."""

from ttamer.reporting.frontier_figure import draw_frontier as draw_frontier
from ttamer.reporting.policy_figures import draw_if_stop as draw_if_stop
from ttamer.reporting.recommendation import Recommendation as Recommendation, recommend as recommend
from ttamer.reporting.report import write_report as write_report
from ttamer.reporting.style import save_figure as save_figure
