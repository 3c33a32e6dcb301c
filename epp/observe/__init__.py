"""What the picker says of itself: Prometheus families, decision records, logs."""
