"""What the page says of a run, in sentences."""

import math
from typing import Any

from privrec.privacy.words import epsilon_text
from privrec.show.worth import figure_and_arm


def says(found: dict[str, Any]) -> dict[str, str]:
    """Return the sentences of a status document, by the place in the page where they stand."""
    named = found["recipe"] is not None
    return {
        "title": f"{found['recipe']} on {found['data']}" if named else found["run"],
        "state": _state(found),
        "rounds": _rounds(found),
        "step": _step(found.get("step")),
        "left": _left(found),
        "privacy": _privacy(found.get("privacy")),
        "validation": _validation(found.get("validation"), found),
        "memory": _memory(found.get("memory"), is_running=found["state"] in (*_BUSY, "evaluating")),
    }


def _state(found: dict[str, Any]) -> str:
    return {
        "waiting": f"Waiting: {found['run']} does not exist yet, or nothing is in it.",
        "starting": "The training starts.",
        "compiling": "Programs are being compiled.",
        "training": "The training is running.",
        "evaluating": "The training is finished; an evaluation is running.",
        "finished": "The training is finished.",
        "stopped": "Not running any more. It goes on from its last checkpoint with this command:",
        "damaged": f"The run folder cannot be read: {found['problem']}",
    }.get(found["state"], str(found["state"]))


def _rounds(found: dict[str, Any]) -> str:
    if found["round"] is None:
        return "–"
    said = f"{found['round']:,}"
    said += f" of {found['of']:,}" if found.get("of") else ""
    stages = found.get("stages") or []
    if found["stage"] is not None and len(stages) > 1 and found["stage"] in stages:
        said += f" · stage {found['stage']}, {stages.index(found['stage']) + 1} of {len(stages)}"
    return said


def _step(step: dict[str, Any] | None) -> str:
    if not step:
        return ""
    if step["of"] == 1:
        return f"{step['what']} …"
    return f"{step['what']}: {step['done']:,} of {step['of']:,}" + (
        " (per cent)" if step["of"] == 100 and "seconds" not in step else ""
    )


def _left(found: dict[str, Any]) -> str:
    if found["state"] in ("finished", "evaluating"):
        return "none: the training is finished"
    seconds = found.get("seconds_left")
    if seconds is None:
        return "not known yet" if found["state"] in _BUSY else "–"
    stages = found.get("stages") or []
    last = not stages or found["stage"] == stages[-1]
    said = f"about {duration(seconds)}" + ("" if last else ", for this stage")
    pace = found.get("seconds_per_round")
    return said + (f" ({duration(pace)} a round)" if pace else "")


_BUSY = ("starting", "compiling", "training")


def _privacy(found: dict[str, Any] | None) -> str:
    if found is None or not found["releases"]:
        return "nothing is published yet"
    if not found["noised_releases"]:
        return f"no noise, so no guarantee · {_count(found['releases'], 'release')}"
    if found["problem"] is not None:
        counted = _count(found["releases"], "release")
        return f"no guarantee: epsilon is not known: {found['problem']} · {counted}"
    if found["epsilon_of_mechanism"] is None:
        return f"is being computed · {_count(found['releases'], 'release')}"
    why, bare = "", found["releases"] - found["noised_releases"]
    if found["noise"] == "seeded":
        why = "no guarantee: the noise comes from a seed. Of the mechanism: "
    elif bare:
        why = f"no guarantee: {_count(bare, 'release')} had no noise. Of the others: "
    return why + _spent(found)


def _spent(found: dict[str, Any]) -> str:
    """Return ε so far. Where it is not yet of all releases, it says so: it is more in truth."""
    epsilon, first = found["epsilon_of_mechanism"], found["epsilon_of_releases"]
    all_ = found["noised_releases"]
    is_part = first < all_ or found["is_behind"]
    said = f"ε ≥ {_rounded_down(epsilon)}" if is_part else f"ε {epsilon_text(epsilon)}"
    said += f" of {found['target']:g}" if found["target"] else ""
    said += f" at δ {found['delta']:g}"
    if not is_part:
        return f"{said} · {_count(all_, 'release')}"
    more = " or more" if found["is_behind"] else ""
    return f"{said} (first {first:,} of {_count(all_, 'release')}{more}; the rest is being counted)"


def _rounded_down(epsilon: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    return f"{math.floor(epsilon * 10**digits) / 10**digits:.{digits}f}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _validation(found: dict[str, Any] | None, whole: dict[str, Any]) -> str:
    if found is not None:
        shown = figure_and_arm(found["hits"], found.get("interval"))
        said = f"Hits@{found['k']} {shown} after round {found['round']:,}"
        return f"{said} · best {found['best']:.3f} after round {found['best_round']:,}"
    if (whole.get("privacy") or {}).get("noise") == "secure":
        return "not written under secure noise (--diagnostics writes it)"
    return "none yet"


def _memory(found: dict[str, Any] | None, *, is_running: bool) -> str:
    """Return the memory of the process. The system may count its peak later than what is used."""
    if not found:
        return "–"
    now = f"{size(found['now'])} now, " if is_running else ""
    return f"{now}{size(max(found['now'], found['peak']))} at most"


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(0.004), duration(42.2), duration(250), duration(9000)
    ('0.004 s', '42 s', '4 min', '2.5 h')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Return a number of bytes in words.

    >>> size(3e6), size(2.14e9)
    ('3 MB', '2.1 GB')
    """
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
