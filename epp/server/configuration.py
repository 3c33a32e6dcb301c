"""The configuration: from a file, from the command line, or the built-in one."""

from pathlib import Path
from typing import NamedTuple

from epp.config.builtins import BUILT_INS, DEFAULT_BUILT_IN
from epp.config.describe import describe
from epp.config.resolve import ResolvedConfig, load_config
from epp.ledger import Ledger
from epp.plugins.predicted_latency_producer import PredictedLatencyProducer
from epp.problem import Problem
from epp.scheduling.plugin import Services
from epp.scheduling.registry import Registry

PLUGINS = "epp.plugins"


class ConfigText(NamedTuple):
    """A configuration as it was read, once: whatever is built of it, in whichever process, is built of this.

    Attributes:
        name: what messages call it; of a file its path.
    """

    text: str
    name: str


def check(config_file: str | None, config_text: str | None, profile: str | None = None) -> str:
    """The pipeline that a configuration makes, as text. Raises `Problem`."""
    return describe(build_config(text_of(config_file, config_text, profile), Services(ledger=Ledger())))


def build_config(source: ConfigText, services: Services, *, allow_experimental: bool = False) -> ResolvedConfig:
    """The configuration with its plugins made. Raises `Problem`."""
    return load_config(
        source.text,
        filename=source.name,
        registry=Registry.discover(PLUGINS),
        services=services,
        allow_experimental=allow_experimental,
    )


def predicts(config: ResolvedConfig) -> bool:
    """Whether it predicts latency with what is learned: the only one that needs XGBoost."""
    return any(isinstance(plugin, PredictedLatencyProducer) for plugin in config.plugins)


def text_of(config_file: str | None = None, config_text: str | None = None, profile: str | None = None) -> ConfigText:
    """That of the file, else the text, else a built-in one. Raises `Problem`."""
    if config_file is None:
        if config_text is not None:
            return ConfigText(config_text, "--config-text")
        name = profile or DEFAULT_BUILT_IN
        if name not in BUILT_INS:
            raise Problem(f"--profile {name}: there is no such configuration; there are {', '.join(BUILT_INS)}")
        return ConfigText(BUILT_INS[name].text, f"built-in configuration {name}")
    try:
        return ConfigText(Path(config_file).read_text(encoding="utf-8"), config_file)
    except OSError as error:
        raise Problem(
            f"{config_file}: cannot be read: {error.strerror}; --config-file names an EndpointPickerConfig"
        ) from error
    except UnicodeDecodeError as error:
        raise Problem(f"{config_file}: is not UTF-8 text; --config-file names an EndpointPickerConfig") from error
