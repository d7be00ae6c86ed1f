"""Published data sets downloaded from their publishers into the user's cache."""

import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from privrec.data.published import (
    PUBLISHED,
    Published,
    cache_folder,
    has_files,
    read_archive,
    read_found,
    search_folders,
)
from privrec.errors import DataError, nearest


def files_here(name: str) -> Path | None:
    """Return the archive, or the folder of the unpacked files, of a published data set.

    None if it must be fetched: `$PRIVREC_DATA` and the cache have nothing, or the cache has
    something else than the published files, which a download replaces.

    Raises:
        DataError: `$PRIVREC_DATA` has files that are not the published ones. They would be read
            before those in the cache.
    """
    published = _published(name)
    try:
        found = read_found(published)
    except DataError as error:
        if any(has_files(folder, published) for folder in search_folders()[:-1]):
            raise DataError(f"{error}; remove it, because it is read first") from error
        return None
    return found and found[0]


def fetch(name: str, *, address: str | None = None, timeout: float = 60.0) -> Path:
    """Return the files of a published data set; download its archive into the cache if needed.

    The archive is kept only if the SHA-256 sums of its files are those of the published files.
    `address` replaces the publisher's. `timeout` is the longest wait for data, in seconds.

    Raises:
        DataError: The download failed; the message says which file to put where by hand.
    """
    published = _published(name)
    if here := files_here(name):
        return here
    target = cache_folder() / published.archive
    by_hand = f"get {published.archive} from {published.address} and put it into {target.parent}"
    source = address or published.download
    if source is None:
        raise DataError(f"the publisher of {name} offers no direct download: {by_hand}")
    try:
        fault = _download(source, target, published, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        fault = str(error).removeprefix("<urlopen error ").removesuffix(">")
        if isinstance(error, urllib.error.HTTPError):
            error.close()
    if fault is not None:
        raise DataError(f"cannot fetch {name} from {source}: {' '.join(fault.split())}; {by_hand}")
    return target


def _published(name: str) -> Published:
    if name not in PUBLISHED:
        raise DataError(
            f"nothing to fetch: {name!r} must be one of {', '.join(PUBLISHED)}"
            f"{nearest(name, PUBLISHED)}"
        )
    return PUBLISHED[name]


def _download(source: str, target: Path, published: Published, timeout: float) -> str | None:
    """Download the archive to `target`; return what is wrong with it, or None."""
    if not source.startswith(("https://", "http://", "file://")):
        return "the address must start with https://, http:// or file://"
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    part = Path(name)
    try:
        with (
            os.fdopen(handle, "wb") as file,
            # S310 warns of other schemes than the three allowed above.
            urllib.request.urlopen(source, timeout=timeout) as answer,  # noqa: S310
        ):
            shutil.copyfileobj(answer, file)
        fault = _fault(part, published)
        if fault is None:
            part.replace(target)
        return fault
    finally:
        part.unlink(missing_ok=True)


def _fault(archive: Path, published: Published) -> str | None:
    """Return how the archive's files differ from the published ones, or None."""
    try:
        read_archive(archive, published)
    except DataError as error:
        return str(error).replace(f"{archive}", "the archive")
    return None
