"""The broker's configuration: one TOML file, environment variables and flags over it, checked as a whole."""

from braidmq.config.load import load
from braidmq.config.problems import ConfigError
from braidmq.config.reload import reload_plan
from braidmq.config.settings import Config

__all__ = ["Config", "ConfigError", "load", "reload_plan"]
