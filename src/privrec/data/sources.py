"""The built-in data sets, and loading a built-in name or a data folder as a federation."""

from dataclasses import fields
from pathlib import Path

from privrec.data.federation import Federation
from privrec.data.published import PUBLISHED, has_files, load_published, search_folders
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.data.tables import read_folder, to_federation
from privrec.errors import DataError, SettingsError, nearest

BUILT_IN: dict[str, str] = {
    "synthetic": "made-up people with known tastes; any size: synthetic:users=100000,items=2000",
    **{name: f"{published.cite}" for name, published in PUBLISHED.items()},
}


def load(data: str) -> Federation:
    """Return the federation of a built-in name or a data folder.

    `synthetic` takes settings behind a colon: `synthetic:users=1000000,seed=3`.
    """
    name, _, settings = data.partition(":")
    if name == "synthetic":
        return synthetic(_synthetic_settings(settings))
    if name in PUBLISHED and not settings:
        return to_federation(load_published(name))
    folder = Path(data)
    if (folder / "config.toml").is_file() and not (folder / "dataset.toml").is_file():
        raise DataError(f"data {data!r} is a run folder, not data; its config.toml names its data")
    if folder.is_dir():
        return to_federation(read_folder(folder))
    what = (
        "is a file, not a data folder" if folder.exists() else "is no built-in name and no folder"
    )
    hint = nearest(name, BUILT_IN) or "; see 'privrec data list', or 'privrec data import'"
    raise DataError(f"data {data!r} {what}{hint}")


def _synthetic_settings(text: str) -> SyntheticSettings:
    known = [field.name for field in fields(SyntheticSettings)]
    given: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise SettingsError(f"synthetic: unknown key {key!r}{nearest(key, known)}")
        if not (value.isascii() and value.isdigit()):
            raise SettingsError(f"synthetic: `{key}` must be a whole number; got {value!r}")
        given[key] = int(value)
    return SyntheticSettings(**given)


def is_here(name: str) -> bool:
    """Return whether a built-in data set can be loaded without fetching anything."""
    if name not in PUBLISHED:
        return True
    return any(has_files(folder, PUBLISHED[name]) for folder in search_folders())
