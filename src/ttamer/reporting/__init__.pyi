from ttamer.reporting.recommendation import Recommendation as Recommendation
from ttamer.reporting.recommendation import recommend as recommend
from ttamer.reporting.report import write_report as write_report
