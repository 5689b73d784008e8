from ttamer.serve.app import make_app as make_app
from ttamer.serve.config import (
    Settings as Settings,
    read_settings as read_settings,
    settings_from as settings_from,
)
from ttamer.serve.gateway import Gateway as Gateway
from ttamer.serve.observability.trace_log import log_files as log_files, read_rows as read_rows
