"""What a gateway reports: records of requests, metrics, logs, spans and the status page."""
