"""The configuration: from a file, from the command line, or the built-in one."""

from pathlib import Path

from epp.config.builtins import BUILT_INS, DEFAULT_BUILT_IN
from epp.config.describe import describe
from epp.config.resolve import ResolvedConfig, load_config
from epp.ledger import Ledger
from epp.plugins.predicted_latency_producer import PredictedLatencyProducer
from epp.problem import Problem
from epp.scheduling.plugin import Services
from epp.scheduling.registry import Registry

PLUGINS = "epp.plugins"


def check(config_file: str | None, config_text: str | None, profile: str | None = None) -> str:
    """The pipeline that a configuration makes, as text. Raises `Problem`."""
    return describe(read_config(config_file, config_text, Services(ledger=Ledger()), profile=profile))


def read_config(
    config_file: str | None,
    config_text: str | None,
    services: Services,
    *,
    profile: str | None = None,
    allow_experimental: bool = False,
) -> ResolvedConfig:
    """The configuration with its plugins made; a built-in one if neither file nor text is given. Raises `Problem`."""
    text, filename = text_of(config_file, config_text, profile)
    return load_config(
        text,
        filename=filename,
        registry=Registry.discover(PLUGINS),
        services=services,
        allow_experimental=allow_experimental,
    )


def predicts(config: ResolvedConfig) -> bool:
    """Whether it predicts latency with what is learned: the only one that needs XGBoost."""
    return any(isinstance(plugin, PredictedLatencyProducer) for plugin in config.plugins)


def text_of(config_file: str | None, config_text: str | None, profile: str | None = None) -> tuple[str, str]:
    """The text, and what messages call it: the file, else the text, else a built-in one. Raises `Problem`."""
    if config_file is None:
        if config_text is not None:
            return config_text, "--config-text"
        name = profile or DEFAULT_BUILT_IN
        if name not in BUILT_INS:
            raise Problem(f"--profile {name}: there is no such configuration; there are {', '.join(BUILT_INS)}")
        return BUILT_INS[name].text, f"built-in configuration {name}"
    try:
        return Path(config_file).read_text(encoding="utf-8"), config_file
    except OSError as error:
        raise Problem(
            f"{config_file}: cannot be read: {error.strerror}; --config-file names an EndpointPickerConfig"
        ) from error
    except UnicodeDecodeError as error:
        raise Problem(f"{config_file}: is not UTF-8 text; --config-file names an EndpointPickerConfig") from error
