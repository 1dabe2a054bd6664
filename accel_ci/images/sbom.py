"""The bill of materials of an image, in CycloneDX."""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID, uuid5

from accel_ci.images.contents import SoftwarePackage


def bill_of_materials(name: str, version: str, packages: Iterable[SoftwarePackage]) -> bytes:
    """Write a CycloneDX 1.6 document in JSON for the image `name`, whose version is its digest.

    The same packages give the same bytes: it has no timestamp, and its serial number is made from the digest.
    """
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL

    bom = Bom(serial_number=uuid5(UUID(int=0), version))
    bom.metadata.component = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=f"image:{version}")
    for each in packages:
        address = PackageURL(each.kind, None if each.kind == "pypi" else "debian", each.name, each.version)
        own = Component(name=each.name, version=each.version, type=ComponentType.LIBRARY, purl=address, bom_ref=str(address))
        if each.licence:
            own.licenses.add(LicenseFactory().make_from_string(each.licence))
        bom.components.add(own)
    bom.register_dependency(bom.metadata.component, bom.components)
    document = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    document["metadata"].pop("timestamp", None)
    return json.dumps(document, indent=1, sort_keys=True).encode()
