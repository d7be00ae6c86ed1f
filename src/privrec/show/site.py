"""A static site with a model: whoever opens it gets her list on her own device.

The site has the page and the JavaScript of `web/`, the model, and what the model promises. It works
on any file server and below any path, and asks for nothing but its own files.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from privrec.data.catalogue import Catalogue
from privrec.data.text import safe_text
from privrec.errors import SettingsError
from privrec.privacy.statement import SCALE, epsilon_text
from privrec.runs.documents import Privacy
from privrec.runs.folder import file_errors, write_whole
from privrec.runs.run import Exported
from privrec.show.promise import scale_place, statement_of

WEB = Path(__file__).parents[1] / "web"
_PICTURES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".avif": "image/avif",
}
_MARK, _KIND = "about.json", "privrec-page"
"""A folder with this file, which says of this kind, is a site of privrec: it may be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site that was written: the bytes of its model, of its pictures, and of all other files."""

    model: int
    pictures: int
    page: int


def write_site(
    exported: Exported, folder: Path, *, title: str | None = None, pictures: Path | None = None
) -> Site:
    """Write a site with an exported model to a folder, which must be empty or have a site.

    `title` is the title of the page; by default, the name of the data. `pictures` is a folder of
    pictures; each has the id of its item as its name.
    """
    _check_folder(folder)
    catalogue = exported.model.catalogue
    found = {} if pictures is None else _pictures_of(pictures, catalogue)
    title = safe_text(title or catalogue.name)
    files = _own_files(title)
    page = sum(map(len, files.values()))
    files["model.privrec"] = exported.content
    if found:
        files["pictures.zip"] = _stored({path.name: path for path, _ in found.values()})
    kinds = {path.name: [item, kind] for item, (path, kind) in found.items()}
    about = {
        "is": _KIND,
        "format": 1,
        "name": title,
        "bytes": len(exported.content),
        "promise": _promise(Privacy.model_validate(exported.model.privacy)),
        "pictures": kinds or None,
        "files": ["./", *sorted({*files, _MARK})],
    }
    files[_MARK] = json.dumps(about, ensure_ascii=False).encode()
    # The worker is the last file: a browser that sees its new version takes new files only.
    files["worker.js"] = _worker(files)
    files["worker.js"] = files.pop("worker.js")
    if not (folder / _MARK).exists():  # So that a first export that is cut off can begin anew.
        write_whole(folder / _MARK, json.dumps({"is": _KIND}).encode())
    for name, content in files.items():
        write_whole(folder / name, content)
    more = len(files[_MARK])
    return Site(
        model=len(exported.content), pictures=len(files.get("pictures.zip", b"")), page=page + more
    )


def _check_folder(folder: Path) -> None:
    """Raise unless a site can be written here without harm to other files."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file: --web takes the name of a folder")
    with file_errors(folder, "read"):
        if folder.is_dir() and any(folder.iterdir()) and not _is_site(folder):
            raise SettingsError(f"{folder} has other files: --web takes a new folder")
    if (folder / "device").is_symlink():
        raise SettingsError(f"{folder / 'device'} is a link: --web takes a new folder")


def _is_site(folder: Path) -> bool:
    """Return whether a folder has the mark of a site."""
    try:
        about = json.loads((folder / _MARK).read_bytes())
    except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
        return False
    return isinstance(about, dict) and about.get("is") == _KIND


def _own_files(title: str) -> dict[str, bytes]:
    """Return the files that every site has, by their paths."""
    folders = {"": WEB / "page", "device/": WEB / "device"}
    files = {
        f"{prefix}{path.name}": path.read_bytes()
        for prefix, folder in folders.items()
        for path in sorted(folder.iterdir())
    }
    sizes = {"icon-192.png": "192x192", "icon-512.png": "512x512"}
    manifest = {
        "name": title,
        "short_name": title[:12],
        "start_url": "./",
        "scope": "./",
        "display": "standalone",
        "background_color": "#f6f5f2",
        "theme_color": "#2b5d50",
        "icons": [
            {"src": "icon.svg", "sizes": "any", "type": "image/svg+xml"},
            *({"src": name, "sizes": size, "type": "image/png"} for name, size in sizes.items()),
        ],
    }
    files["manifest.json"] = json.dumps(manifest, ensure_ascii=False).encode()
    return files


def _worker(files: Mapping[str, bytes]) -> bytes:
    """Return the service worker: it keeps these files, and has another version if one changes."""
    names = [name for name in sorted(files) if name not in ("worker.js", "index.html")]
    version = hashlib.sha256()
    for name in sorted(files):
        version.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    lines = {
        'const FILES = ["./"];': f"const FILES = {json.dumps(['./', *names])};",
        'const VERSION = "";': f'const VERSION = "{version.hexdigest()[:16]}";',
    }
    text = files["worker.js"].decode()
    for before, after in lines.items():
        text = text.replace(before, after)
    return text.encode()


def _promise(privacy: Privacy) -> dict[str, object]:
    """Return what the model promises, in the words of the report."""
    epsilon = privacy.epsilon
    in_short = statement_of(privacy)
    return {
        "strength": in_short["strength"],
        "text": in_short["text"].replace("`", ""),
        "full": privacy.statement.replace("`", ""),
        "epsilon": None if epsilon is None else epsilon_text(epsilon),
        "delta": None if privacy.delta is None else f"{privacy.delta:g}",
        "place": None if epsilon is None else round(scale_place(epsilon), 4),
        "scale": f"The scale: {SCALE}. Smaller is stronger.",
        "not_covered": [line.replace("`", "") for line in privacy.not_covered],
    }


def _pictures_of(folder: Path, catalogue: Catalogue) -> dict[str, tuple[Path, str]]:
    """Return the picture of each item that has one, and its kind."""
    if not folder.is_dir():
        raise SettingsError(f"--pictures takes a folder; got {folder}")
    known = {*catalogue.item_ids}
    found = {
        path.stem: (path, _PICTURES[path.suffix.lower()])
        for path in sorted(folder.iterdir())
        if path.stem in known and path.suffix.lower() in _PICTURES
    }
    if not found:
        kinds = ", ".join(sorted(_PICTURES))
        raise SettingsError(
            f"{folder} has no picture of an item: a picture is named after an id, such as"
            f" {catalogue.item_ids[0]}.jpg ({kinds})"
        )
    return found


def _stored(paths: Mapping[str, Path]) -> bytes:
    """Return an archive of files as they are.

    All pictures are in one file, so that a server does not learn which of them are shown.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, path in paths.items():
            with file_errors(path, "read"):
                file.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return content.getvalue()
