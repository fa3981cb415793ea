"""The broker's configuration: one TOML file, environment variables and flags over it, checked as a whole."""

from braidmq.broker.config.load import load
from braidmq.broker.config.problems import ConfigError
from braidmq.broker.config.reload import reload_plan
from braidmq.broker.config.settings import Config

__all__ = ["Config", "ConfigError", "load", "reload_plan"]
