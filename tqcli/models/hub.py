"""Models from the Hugging Face hub, kept where its own library keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tqcli.errors import InputError

# No .py: code of a repository is never run.
_WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "*.tiktoken"]
_NETWORK_WORDS = ("Connect", "Timeout", "LocalEntryNotFound", "Offline", "Proxy", "SSL", "gaierror")


def download(hub_id: str, revision: str | None = None) -> Path:
    """The snapshot folder of a hub model, fetched unless it is here; its name is the commit.

    Raises `InputError` in one line if the hub can't be reached, has no such model or won't give it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    # Its HTTP client changed between versions; the client's own errors are what its errors derive from.
    bases = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    refusals: tuple[type[Exception], ...] = (*bases, OSError, ValueError, RuntimeError)
    cause: Exception

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=_WANTED))
    except GatedRepoError as e:
        reason, cause = "it needs a login and its licence accepted (hf auth login)", e
    except RepositoryNotFoundError as e:
        reason, cause = "the hub has no such model, or it is private", e
    except RevisionNotFoundError as e:
        reason, cause = f"it has no revision {revision}", e
    except refusals as e:
        reason, cause = _reason(e), e
    raise InputError(
        f"can't fetch the model {hub_id} from the hub: {reason}; "
        "name a model folder or .gguf file that is here, or smollm2-135m"
    ) from cause


def local_snapshot(hub_id: str, revision: str | None = None) -> Path | None:
    """The snapshot folder if it is here already; nothing is fetched."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=_WANTED, local_files_only=True))
    except (OSError, ValueError, RuntimeError):
        return None


def _reason(error: BaseException) -> str:
    """Why, in a few words and without addresses."""
    link: BaseException | None = error
    while link is not None:
        if any(word in type(link).__name__ for word in _NETWORK_WORDS):
            return "it can't be reached (no network, or offline mode)"
        link = link.__cause__ or link.__context__
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120].rstrip(".")
