from ttamer.show import (
    ProgressOption as ProgressOption,
    ProgressReport as ProgressReport,
    TimeLeft as TimeLeft,
    counted as counted,
    shown as shown,
)
