"""Published data sets downloaded from their publishers into the user's cache."""

import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from privrec.data.published import PUBLISHED, Published, cache_folder, read_archive
from privrec.errors import DataError, nearest


def fetch(name: str, *, address: str | None = None, timeout: float = 60.0) -> Path:
    """Return the archive of a published data set in the cache; download it if it is missing.

    The archive is kept only if the SHA-256 sums of its files are those of the published files.
    `address` replaces the publisher's. `timeout` is the longest wait for data, in seconds.

    Raises:
        DataError: The download failed; the message says which file to put where by hand.
    """
    if name not in PUBLISHED:
        raise DataError(
            f"nothing to fetch: {name!r} must be one of {', '.join(PUBLISHED)}"
            f"{nearest(name, PUBLISHED)}"
        )
    published = PUBLISHED[name]
    target = cache_folder() / published.archive
    by_hand = f"get {published.archive} from {published.address} and put it into {target.parent}"
    if target.is_file() and _fault(target, published) is None:
        return target
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
