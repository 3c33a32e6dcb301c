"""How long each candidate would take to the first token and per output token: features, prior, model, calibration."""
