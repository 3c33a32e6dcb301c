"""The process: transports, health, TLS, drain, admin pages; builds every object from the configuration."""
