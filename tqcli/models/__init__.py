"""Where a model comes from: a packaged model, a GGUF file, an mlx-lm folder or a hub id."""

from tqcli.models.catalogue import describe, packaged_models
from tqcli.models.fetching import fetch
from tqcli.models.loading import LoadedModel, load
from tqcli.models.packaged import DEFAULT_MODEL
from tqcli.models.source import ModelSource, resolve

__all__ = ["DEFAULT_MODEL", "LoadedModel", "ModelSource", "describe", "fetch", "load", "packaged_models", "resolve"]
