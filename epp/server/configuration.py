"""The configuration: from a file, from the command line, or the built-in one."""

from pathlib import Path

from epp.config.defaults import DEFAULT_CONFIG
from epp.config.describe import describe
from epp.config.resolve import ResolvedConfig, load_config
from epp.ledger import Ledger
from epp.problem import Problem
from epp.scheduling.plugin import Services
from epp.scheduling.registry import Registry

BUILT_IN = "built-in configuration"
PLUGINS = "epp.plugins"


def check(config_file: str | None, config_text: str | None) -> str:
    """The pipeline that a configuration makes, as text. Raises `Problem`."""
    return describe(read_config(config_file, config_text, Services(ledger=Ledger())))


def read_config(
    config_file: str | None, config_text: str | None, services: Services, *, allow_experimental: bool = False
) -> ResolvedConfig:
    """The configuration with its plugins made; the built-in one if neither file nor text is given. Raises `Problem`."""
    text, filename = text_of(config_file, config_text)
    return load_config(
        text,
        filename=filename,
        registry=Registry.discover(PLUGINS),
        services=services,
        allow_experimental=allow_experimental,
    )


def text_of(config_file: str | None, config_text: str | None) -> tuple[str, str]:
    """The text, and what messages call it. Raises `Problem`."""
    if config_file is None:
        return (DEFAULT_CONFIG, BUILT_IN) if config_text is None else (config_text, "--config-text")
    try:
        return Path(config_file).read_text(encoding="utf-8"), config_file
    except OSError as error:
        raise Problem(
            f"{config_file}: cannot be read: {error.strerror}; --config-file names an EndpointPickerConfig"
        ) from error
    except UnicodeDecodeError as error:
        raise Problem(f"{config_file}: is not UTF-8 text; --config-file names an EndpointPickerConfig") from error
