"""What stands in a chart: its points and its words."""

import xml.etree.ElementTree as ET

Points = list[tuple[float, float]]


def svg_of(figure: str) -> ET.Element:
    """The picture in a figure; the whole figure must be well-formed."""
    found = ET.fromstring(figure).find("svg")  # noqa: S314 - our own text
    assert found is not None
    return found


def points_of(root: ET.Element) -> list[Points]:
    return [
        [
            (float(x), float(y))
            for x, y in (pair.split(",") for pair in node.attrib["points"].split())
        ]
        for node in root.iter("polyline")
    ]


def words_of(root: ET.Element) -> list[str]:
    return [node.text or "" for node in root.iter("text")]
