"""One small file per plugin type. A new file here is a new plugin: the registry finds it by itself."""
