"""Make the Atom feed of incidents (RFC 4287): one entry for each, updated when it is seen, fixed or returns."""

from __future__ import annotations

from datetime import datetime
from xml.etree import ElementTree as ET

from accel_ci.hud.render import Site
from accel_ci.hud.text import first_line, visible
from accel_ci.quality.incidents import Incident
from accel_ci.quality.judgement import Incidents

_ATOM = "http://www.w3.org/2005/Atom"
_MOST = 100


def feed_of(incidents: Incidents, site: Site) -> str:
    """Return the feed of the newest incidents, those that are open first."""
    ET.register_namespace("", _ATOM)
    feed = ET.Element(f"{{{_ATOM}}}feed")
    updated = {each.revision: each.at for each in incidents.nights}
    _add(feed, "title", f"Incidents of {visible(site.project)}")
    _add(feed, "id", f"urn:accel-ci:{_safe(site.project)}:incidents")
    _add(feed, "updated", _stamp(max(updated.values(), default=site.generated_at)))
    ET.SubElement(feed, f"{{{_ATOM}}}link", href="incidents.html")
    author = ET.SubElement(feed, f"{{{_ATOM}}}author")
    _add(author, "name", "accel-ci")
    for incident in incidents.incidents[:_MOST]:
        entry = ET.SubElement(feed, f"{{{_ATOM}}}entry")
        _add(entry, "title", _title(incident))
        _add(entry, "id", f"urn:accel-ci:{_safe(site.project)}:incident:{incident.id}")
        _add(entry, "updated", _stamp(updated.get(incident.last, site.generated_at)))
        ET.SubElement(entry, f"{{{_ATOM}}}link", href=f"incidents.html#i-{incident.id}")
        _add(entry, "summary", visible(incident.sentence))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(feed, encoding="unicode") + "\n"


def _title(incident: Incident) -> str:
    tests = f"{len(incident.now):,} {'test' if len(incident.now) == 1 else 'tests'}"
    return f"{incident.cause}, {incident.state}: {first_line(incident.title)} ({tests})"


def _add(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, f"{{{_ATOM}}}{name}").text = text


def _safe(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
