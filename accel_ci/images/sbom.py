"""The bill of materials of an image, in CycloneDX."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from accel_ci.images.contents import SoftwarePackage

if TYPE_CHECKING:
    from cyclonedx.model.component import Component


def bill_of_materials(name: str, version: str, packages: Iterable[SoftwarePackage]) -> bytes:
    """Write a CycloneDX 1.6 document in JSON for the image `name`, whose version is its digest.

    The same packages give the same bytes: it has no timestamp, and its serial number is made from the digest.
    """
    import json
    from uuid import UUID, uuid5

    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    bom = Bom(serial_number=uuid5(UUID(int=0), version))
    bom.metadata.component = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=f"image:{version}")
    components = [_component(package) for package in packages]
    bom.components.update(components)
    bom.register_dependency(bom.metadata.component, components)
    document = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    document["metadata"].pop("timestamp", None)
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _component(package: SoftwarePackage) -> Component:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    address = PackageURL(package.kind, None if package.kind == "pypi" else "debian", package.name, package.version)
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        purl=address,
        bom_ref=str(address),
        licenses=[LicenseFactory().make_from_string(package.licence)] if package.licence else None,
    )
